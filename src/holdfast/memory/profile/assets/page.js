
// One recording, three views. Blocks and events are numbers into typed arrays; every text reaches
// the page through textContent or a canvas, so nothing in a recording can become markup.
(() => {
const timings = window.holdfastTimings = {};
const { size, make, inflate, ticks, above, tip: showTip } = window.holdfast;
const $ = id => document.getElementById(id);
const DRAWN = 10000;          // the largest blocks are bands of their own, the rest is one
const EDGE = 0x40000000;      // a pixel on the rim of a block
// Paul Tol's "bright" and "muted" colours: apart for every common kind of colour vision.
const PALETTE = ["#4477aa", "#44aa99", "#ccbb44", "#ee6677", "#66ccee", "#aa3377", "#ee8866",
  "#228833", "#7d82c9", "#a9a04a"];
let D;                        // the recording, decoded
let L;                        // what the filter leaves: totals, colours, which blocks are drawn
const S = { tab: "timeline", events: false, a: 0, b: 1, low: 0, top: null, place: -1, tag: -1,
  text: "", colour: "line", rss: false, chosen: 0, selected: -1, hover: -1, root: null,
  sort: "bytes", down: true };

// ---- words

function time(ns) {
  if (ns < 1e6) { return (ns / 1e3).toFixed(ns < 1e5 ? 1 : 0) + " µs"; }
  if (ns < 1e9) { return (ns / 1e6).toFixed(1) + " ms"; }
  if (ns < 60e9) { return (ns / 1e9).toFixed(3) + " s"; }
  return Math.floor(ns / 60e9) + " min " + (ns / 1e9 % 60).toFixed(1) + " s";
}
const number = n => n.toLocaleString("en");
const blocksText = n => number(n) + (n === 1 ? " block" : " blocks");
const share = (part, whole) => !whole ? "–" : part && part < whole / 2000 ? "< 0.1 %"
  : (100 * part / whole).toFixed(part && part < whole / 100 ? 1 : 0) + " %";
const short = file => file.replace(/^.*[/\\](?:site|dist)-packages[/\\]/, "").split(/[/\\]/).slice(-2).join("/");
function frameText(f) {
  const [file, line, name] = D.frames[f];
  return short(D.texts[file]) + ":" + line + " in " + D.texts[name];
}
const siteText = stack => D.sites[stack] < 0 ? "(no stack recorded)" : frameText(D.sites[stack]);

// ---- decoding

function column(bytes, offset, width, count) {
  if (width === 2) {
    const out = new Uint16Array(count);
    for (let i = 0; i < count; i += 1) { out[i] = bytes[offset + i] | bytes[offset + count + i] << 8; }
    return out;
  }
  const word = at => {
    const out = new Uint32Array(count);
    for (let k = 0; k < 4; k += 1) {
      const from = at + k * count, shift = 8 * k;
      for (let i = 0; i < count; i += 1) { out[i] |= bytes[from + i] << shift; }
    }
    return out;
  };
  if (width === 4) { return word(offset); }
  const low = word(offset), high = word(offset + 4 * count), out = new Float64Array(count);
  for (let i = 0; i < count; i += 1) { out[i] = low[i] + high[i] * 4294967296; }
  return out;
}
function summed(steps) {
  for (let i = 1; i < steps.length; i += 1) { steps[i] += steps[i - 1]; }
  return steps;
}
async function decode() {
  const bytes = new Uint8Array(await inflate($("data").textContent.trim()));
  const length = new DataView(bytes.buffer).getUint32(0, true);
  D = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  let offset = 4 + length;
  for (const [name, width, count] of D.columns) {
    D[name] = column(bytes, offset, width, count);
    offset += width * count;
  }
  summed(D.times); summed(D.begins);
  const n = D.count = D.begins.length, events = D.events;
  D.ends = new Uint32Array(n);
  D.opens = new Int32Array(events).fill(-1);
  D.closes = new Int32Array(events).fill(-1);
  for (let b = 0; b < n; b += 1) {
    D.opens[D.begins[b]] = b;
    D.ends[b] = D.lives[b] ? D.begins[b] + D.lives[b] : events;
    if (D.ends[b] < events) { D.closes[D.ends[b]] = b; }
  }
  D.length = Math.max(D.duration_ns, events ? D.times[events - 1] : 0, 1);
  D.lines = D.series.map((name, i) => ({ name, times: summed(D["series_" + i + "_times"]), bytes: D["series_" + i + "_bytes"] }));
  D.rss = D.lines.find(line => line.name === "rss");
}

// ---- layout: what the filter leaves

function matching() {
  const found = S.text.trim().toLowerCase();
  const stacks = found === "" ? null : D.stacks.map(stack => stack.some(f => {
    const [file, line, name] = D.frames[f];
    return (D.texts[file] + ":" + line + " " + D.texts[name]).toLowerCase().includes(found);
  }));
  const keep = new Uint8Array(D.count);
  for (let b = 0; b < D.count; b += 1) {
    keep[b] = (S.place < 0 || D.places[b] === S.place) && (S.tag < 0 || D.tags[b] === S.tag) &&
      (stacks === null || stacks[D.stack_of[b]]) ? 1 : 0;
  }
  return keep;
}
function layout() {
  const started = performance.now(), n = D.count, events = D.events;
  L = { keep: matching(), drawn: new Uint8Array(n), all: new Float64Array(events), own: new Float64Array(events), chosen: null };
  const kept = [];
  for (let b = 0; b < n; b += 1) { if (L.keep[b]) { kept.push(b); } }
  let least = 0;
  if (kept.length > DRAWN) {
    const sizes = Float64Array.from(kept, b => D.sizes[b]).sort();
    least = sizes[sizes.length - DRAWN];
  }
  let room = DRAWN, all = 0, own = 0;
  for (const b of kept) { if (D.sizes[b] > least || least === 0) { L.drawn[b] = 1; room -= 1; } }
  for (const b of kept) { if (least && D.sizes[b] === least && room > 0) { L.drawn[b] = 1; room -= 1; } }
  L.peak = 0; L.peakEvent = -1;
  for (let i = 0; i < events; i += 1) {
    const c = D.closes[i], o = D.opens[i];
    if (c >= 0 && L.keep[c]) { all -= D.sizes[c]; if (L.drawn[c]) { own -= D.sizes[c]; } }
    if (o >= 0 && L.keep[o]) { all += D.sizes[o]; if (L.drawn[o]) { own += D.sizes[o]; } }
    L.all[i] = all; L.own[i] = own;
    if (all > L.peak) { L.peak = all; L.peakEvent = i; }
  }
  L.kept = kept.length;
  colours();
  timings.layout_ms = performance.now() - started;
}
function aliveAt(event) {
  const found = [];
  for (let b = 0; b < D.count && D.begins[b] <= event; b += 1) {
    if (D.ends[b] > event && L.keep[b]) { found.push(b); }
  }
  return found;
}
function chosenAlive() {
  if (!L.chosen || L.chosen.event !== S.chosen) { L.chosen = { event: S.chosen, blocks: aliveAt(S.chosen) }; }
  return L.chosen.blocks;
}

// ---- colours

let theme = {};
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["card", "ink", "soft", "faint", "line", "well", "accent", "rss", "rest", "free", "hot"]) {
    theme[name] = style.getPropertyValue("--" + name).trim();
  }
  theme.dark = matchMedia("(prefers-color-scheme: dark)").matches;
}
const channels = hex => {
  const long = hex.length === 4 ? hex.replace(/[0-9a-f]/gi, "$&$&") : hex;
  return [1, 3, 5].map(i => parseInt(long.slice(i, i + 2), 16));
};
const mix = (a, b, part) => a.map((v, i) => Math.round(v + (b[i] - v) * part));
const word = rgb => (255 << 24 | rgb[2] << 16 | rgb[1] << 8 | rgb[0]) >>> 0;
const css = rgb => "rgb(" + rgb.join(" ") + ")";
const SIZES = [[1e9, "1 GB and more"], [1e8, "100 MB to 1 GB"], [1e7, "10 to 100 MB"], [1e6, "1 to 10 MB"], [0, "below 1 MB"]];
function groupOf(b) {
  if (S.colour === "tag") { return D.tags[b]; }
  if (S.colour === "place") { return D.places[b]; }
  if (S.colour === "size") { return SIZES.findIndex(s => D.sizes[b] >= s[0]); }
  return D.lineOf[D.stack_of[b]];
}
function groupName(g) {
  if (S.colour === "tag") { return D.tag_names[g] || "(no tag)"; }
  if (S.colour === "place") { return D.place_names[g]; }
  if (S.colour === "size") { return SIZES[g][1]; }
  return D.lineNames[g];
}
function colours() {
  // The groups that held most at one time come first; past the palette, it begins again paler.
  const names = new Map(), groups = new Int32Array(D.count), now = [], most = [];
  for (let b = 0; b < D.count; b += 1) {
    if (!L.keep[b]) { continue; }
    const g = groupOf(b);
    let at = names.get(g);
    if (at === undefined) { at = now.length; names.set(g, at); now.push(0); most.push(0); }
    groups[b] = at;
  }
  for (let i = 0; i < D.events; i += 1) {
    const c = D.closes[i], o = D.opens[i];
    if (c >= 0 && L.keep[c]) { now[groups[c]] -= D.sizes[c]; }
    if (o >= 0 && L.keep[o]) { const g = groups[o]; now[g] += D.sizes[o]; if (now[g] > most[g]) { most[g] = now[g]; } }
  }
  L.most = new Map([...names].map(([g, i]) => [g, most[i]]));
  const order = [...names.keys()].sort((x, y) => L.most.get(y) - L.most.get(x));
  const card = channels(theme.card), ink = channels(theme.dark ? "#000000" : "#17202b");
  L.groups = order; L.rgb = new Map();
  order.forEach((g, i) => {
    const base = channels(PALETTE[i % PALETTE.length]), round = Math.floor(i / PALETTE.length);
    L.rgb.set(g, round ? mix(base, card, round % 2 ? .45 : .25) : mix(base, card, theme.dark ? .06 : .04));
  });
  L.fill = new Uint32Array(D.count + 1); L.rim = new Uint32Array(D.count + 1);
  const shades = [];
  for (const [g, rgb] of L.rgb) {
    const tones = [0, .13, .24].map(part => mix(rgb, card, part));
    shades[names.get(g)] = tones.concat(tones.map(tone => mix(tone, ink, .3))).map(word);
  }
  for (let b = 0; b < D.count; b += 1) {
    if (!L.keep[b]) { continue; }
    const tones = shades[groups[b]], t = b % 3;
    L.fill[b] = tones[t]; L.rim[b] = tones[t + 3];
  }
  L.fill[D.count] = L.rim[D.count] = word(channels(theme.rest));
}
const tone = b => css([0, 8, 16].map(shift => L.fill[b] >> shift & 255));
const colourOf = b => css(L.rgb.get(groupOf(b)) || channels(theme.rest));

// ---- canvases

function prepare(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, width * height > 1.3e6 ? 1 : 2);
  const w = Math.max(1, Math.round(width * scale)), h = Math.max(1, Math.round(height * scale));
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px " + getComputedStyle(document.body).fontFamily;
  return [pen, scale];
}
function axisTime(ns, step) {
  const [unit, name] = S.b >= 1e9 ? [1e9, " s"] : S.b >= 1e6 ? [1e6, " ms"] : [1e3, " µs"];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  return (ns / unit).toFixed(ns ? digits : 0) + name;
}
function axisSize(bytes, step) {
  const units = ["B", "KB", "MB", "GB", "TB"], i = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(bytes, step, 1)) / 3 + 1e-9)));
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 1000 ** i) - 1e-9));
  return (bytes / 1000 ** i).toFixed(bytes ? digits : 0) + " " + units[i];
}

// ---- the timeline

const plot = { left: 66, right: 14, top: 22, bottom: 26, w: 0, h: 0, ids: new Int32Array(0), W: 0, H: 0 };
const lastX = () => S.events ? Math.max(D.events, 1) : D.length;
// How many events have happened at x.
function happened(x) {
  if (S.events) { return Math.max(0, Math.min(D.events, Math.floor(x) + 1)); }
  return above(D.times, x);
}
const xOf = event => S.events ? event : event < 0 ? 0 : event >= D.events ? D.length : D.times[event];
const pixelX = x => plot.left + (x - S.a) / (S.b - S.a) * plot.w;
const pixelY = y => plot.top + plot.h - (y - S.low) / (plot.high - S.low) * plot.h;

// For each column of pixels the state to show: the fullest one in it, so that no peak is lost.
function columns(W) {
  const target = new Int32Array(W);
  let state = happened(S.a) - 1, most = 0;
  for (let k = 0; k < W; k += 1) {
    const until = happened(S.a + (S.b - S.a) * (k + 1) / W) - 1;
    let best = state, value = state < 0 ? 0 : L.all[state];
    for (let i = Math.max(state, 0); i <= until; i += 1) { if (L.all[i] > value) { value = L.all[i]; best = i; } }
    target[k] = best; state = Math.max(state, until);
    if (value > most) { most = value; }
  }
  return [target, most];
}
function rssRange() {
  let most = 0;
  if (!S.rss || !D.rss || S.events && !D.events) { return 0; }
  const { times, bytes } = D.rss;
  const from = S.events ? xTime(S.a) : S.a, to = S.events ? xTime(S.b) : S.b;
  for (let i = 0; i < times.length; i += 1) { if (times[i] >= from && times[i] <= to && bytes[i] > most) { most = bytes[i]; } }
  return most;
}
const xTime = x => S.events ? D.times[Math.max(0, Math.min(D.events - 1, Math.floor(x)))] : x;

const chain = { next: new Int32Array(0), prev: new Int32Array(0) };
function paint(target, W, H) {
  // A sweep over all events keeps the blocks that are alive in a chain, oldest first; each column
  // walks the chain once. ids[column * H + y] is the block on that pixel, y counted from below.
  const n = D.count, ids = plot.ids, { drawn, all, own } = L, { sizes, opens, closes, begins, ends } = D;
  if (chain.next.length !== n + 1) { chain.next = new Int32Array(n + 1); chain.prev = new Int32Array(n + 1); }
  const next = chain.next, prev = chain.prev, low = S.low, scale = H / (plot.high - low);
  const pixel = W / (S.b - S.a);
  next[n] = prev[n] = n;
  plot.starts = [];
  let at = -1, shown = -2;
  for (let k = 0; k < W; k += 1) {
    const goal = target[k], base = k * H;
    if (goal === shown) { ids.copyWithin(base, base - H, base); continue; }
    for (at += 1; at <= goal; at += 1) {
      const c = closes[at], o = opens[at];
      if (c >= 0 && drawn[c]) { next[prev[c]] = next[c]; prev[next[c]] = prev[c]; }
      if (o >= 0 && drawn[o]) { const last = prev[n]; next[last] = o; prev[o] = last; next[o] = n; prev[n] = o; }
    }
    at = Math.max(goal, -1);
    let sum = -low, y = 0;
    for (let b = next[n]; b !== n && y < H; b = next[b]) {
      sum += sizes[b];
      let stop = sum * scale + .5 | 0;
      if (sum <= 0 || stop <= y) { continue; }
      if (stop > H) { stop = H; }
      const tall = stop - y;
      if (tall === 1) { ids[base + y] = b; } else {
        ids.fill(b, base + y, base + stop);
        if (tall > 3 && begins[b] > shown && shown > -2 && (xOf(ends[b]) - xOf(begins[b])) * pixel > 6) { plot.starts.push(k, y, stop, b); }
        if (tall > 3) { ids[base + stop - 1] = b | EDGE; }
      }
      y = stop;
    }
    const rest = goal < 0 ? 0 : all[goal] - low;
    const stop = Math.min(H, Math.max(y, rest * scale + .5 | 0));
    if (goal >= 0 && all[goal] > own[goal]) { ids.fill(n, base + y, base + stop); y = stop; }
    ids.fill(-1, base + y, base + H);
    shown = goal;
  }
}
function colourise(W, H) {
  const image = plot.image, pixels = new Uint32Array(image.data.buffer), ids = plot.ids;
  for (let k = 0; k < W; k += 1) {
    for (let y = 0, at = (H - 1) * W + k, i = k * H; y < H; y += 1, at -= W, i += 1) {
      const id = ids[i];
      pixels[at] = id < 0 ? 0 : id & EDGE ? L.rim[id ^ EDGE] : L.fill[id];
    }
  }
  for (let i = 0; i < plot.starts.length; i += 4) {
    const [k, from, to, b] = plot.starts.slice(i, i + 4);
    for (let y = from; y < to; y += 1) { pixels[(H - 1 - y) * W + k] = L.rim[b]; }
  }
}
function drawTimeline() {
  const started = performance.now(), canvas = $("timeline"), box = canvas.parentNode.getBoundingClientRect();
  if (!box.width) { return; }
  const [pen, scale] = prepare(canvas, box.width, box.height);
  plot.w = box.width - plot.left - plot.right; plot.h = box.height - plot.top - plot.bottom;
  const fine = plot.scale = plot.coarse ? scale / 2 : scale;
  const W = plot.W = Math.max(1, Math.round(plot.w * fine)), H = plot.H = Math.max(1, Math.round(plot.h * fine));
  const [target, most] = columns(W);
  plot.most = Math.max(most, rssRange(), 1);
  plot.high = S.top === null ? plot.most * 1.06 : S.top;
  if (S.top === null) { S.low = 0; }
  if (plot.ids.length !== W * H) { plot.ids = new Int32Array(W * H); }
  if (!plot.image || plot.image.width !== W || plot.image.height !== H) { plot.image = pen.createImageData(W, H); }
  paint(target, W, H);
  colourise(W, H);
  grid(pen, box);
  plot.layer = plot.layer || document.createElement("canvas");
  if (plot.layer.width !== W || plot.layer.height !== H) { plot.layer.width = W; plot.layer.height = H; }
  plot.layer.getContext("2d").putImageData(plot.image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(plot.layer, plot.left, plot.top, W / fine, H / fine);
  if (S.rss) { drawRss(pen); }
  drawPeak(pen);
  canvas.setAttribute("aria-label", "Bytes alive over " + (S.events ? "events" : "time") + ", every block a band; peak " + size(L.peak));
  drawOverlay();
  timings.last_draw_ms = performance.now() - started;
}
function grid(pen, box) {
  pen.strokeStyle = theme.line; pen.fillStyle = theme.soft; pen.lineWidth = 1; pen.textBaseline = "middle"; pen.textAlign = "right";
  const [ys, yStep] = ticks(S.low, plot.high, Math.max(3, plot.h / 70));
  for (const v of ys) {
    const y = Math.round(pixelY(v)) + .5;
    pen.beginPath(); pen.moveTo(plot.left, y); pen.lineTo(plot.left + plot.w, y); pen.stroke();
    pen.fillText(axisSize(v, yStep), plot.left - 9, y);
  }
  pen.textAlign = "center"; pen.textBaseline = "top";
  const [xs, xStep] = ticks(S.a, S.b, Math.max(2, plot.w / 120));
  for (const v of xs) {
    const x = Math.round(pixelX(v)) + .5;
    pen.beginPath(); pen.moveTo(x, plot.top + plot.h); pen.lineTo(x, plot.top + plot.h + 5); pen.stroke();
    const text = S.events ? number(Math.round(v)) : axisTime(v, xStep), half = pen.measureText(text).width / 2;
    pen.fillText(text, Math.min(x, box.width - half - 1), plot.top + plot.h + 9);
  }
}
function drawRss(pen) {
  const { times, bytes } = D.rss;
  pen.save();
  pen.beginPath(); pen.rect(plot.left, plot.top, plot.w, plot.h); pen.clip();
  pen.beginPath();
  let column = -1, low = 0, high = 0, begun = false;
  const put = (x, y) => { if (begun) { pen.lineTo(x, y); } else { pen.moveTo(x, y); begun = true; } };
  for (let i = 0; i < times.length; i += 1) {
    const x = pixelX(S.events ? happened2(times[i]) : times[i]), k = Math.floor(x);
    if (k === column) { low = Math.min(low, bytes[i]); high = Math.max(high, bytes[i]); continue; }
    if (column >= 0 && low !== high) { put(column, pixelY(low)); put(column, pixelY(high)); }
    put(x, pixelY(bytes[i])); column = k; low = high = bytes[i];
  }
  pen.lineJoin = "round"; pen.strokeStyle = theme.card; pen.lineWidth = 4; pen.stroke();
  pen.strokeStyle = theme.rss; pen.lineWidth = 1.75; pen.setLineDash([6, 3]); pen.stroke();
  pen.restore();
}
function happened2(ns) {
  let low = 0, high = D.events;
  while (low < high) { const m = (low + high) >> 1; if (D.times[m] <= ns) { low = m + 1; } else { high = m; } }
  return low;
}
function label(pen, text, x, y, colour) {
  const width = pen.measureText(text).width, half = width / 2 + 8;
  const middle = Math.max(plot.left + half, Math.min(plot.left + plot.w - half, x));
  pen.fillStyle = colour; pen.beginPath(); pen.roundRect(middle - half, y - 9, 2 * half, 18, 9); pen.fill();
  pen.fillStyle = theme.card; pen.textAlign = "center"; pen.textBaseline = "middle"; pen.fillText(text, middle, y + .5);
}
function drawPeak(pen) {
  if (L.peakEvent < 0) { return; }
  const x = pixelX(xOf(L.peakEvent)), y = pixelY(L.peak);
  if (x < plot.left - 1 || x > plot.left + plot.w + 1 || y < plot.top - 1 || y > plot.top + plot.h) { return; }
  pen.strokeStyle = theme.card; pen.lineWidth = 2; pen.fillStyle = theme.ink;
  pen.beginPath(); pen.arc(x, y, 4.5, 0, 7); pen.fill(); pen.stroke();
  label(pen, "peak " + size(L.peak), x, Math.max(y - 16, 10), theme.ink);
}
function drawOverlay() {
  const canvas = $("overlay"), box = canvas.parentNode.getBoundingClientRect();
  const [pen] = prepare(canvas, box.width, box.height);
  if (!plot.W) { return; }
  const x = pixelX(xOf(S.chosen));
  if (S.chosen >= 0 && x >= plot.left && x <= plot.left + plot.w) {
    pen.strokeStyle = theme.ink; pen.lineWidth = 1; pen.globalAlpha = .55;
    pen.beginPath(); pen.moveTo(Math.round(x) + .5, plot.top); pen.lineTo(Math.round(x) + .5, plot.top + plot.h); pen.stroke();
    pen.globalAlpha = 1;
  }
  for (const [b, strong] of [[S.hover, false], [S.selected, true]]) { if (b >= 0) { outline(pen, plot.scale, b, strong); } }
}
function outline(pen, scale, block, strong) {
  // The shape of a block is read back from the pixels: its run in each column.
  const { ids, W, H } = plot, runs = [];
  const first = Math.max(0, Math.floor((xOf(D.begins[block]) - S.a) / (S.b - S.a) * W) - 1);
  const last = Math.min(W - 1, Math.ceil((xOf(D.ends[block]) - S.a) / (S.b - S.a) * W) + 1);
  for (let k = first; k <= last; k += 1) {
    let from = -1, to = -1;
    for (let y = 0, i = k * H; y < H; y += 1, i += 1) {
      const id = ids[i];
      if (id >= 0 && (id & ~EDGE) === block) { if (from < 0) { from = y; } to = y + 1; } else if (from >= 0) { break; }
    }
    if (from >= 0) { runs.push([k, from, to]); }
  }
  if (!runs.length) { return; }
  const X = k => plot.left + k / scale, Y = y => plot.top + (H - y) / scale;
  pen.beginPath();
  pen.moveTo(X(runs[0][0]), Y(runs[0][1]));
  for (const [k, , to] of runs) { pen.lineTo(X(k), Y(to)); pen.lineTo(X(k + 1), Y(to)); }
  for (const [k, from] of runs.slice().reverse()) { pen.lineTo(X(k + 1), Y(from)); pen.lineTo(X(k), Y(from)); }
  pen.closePath();
  pen.fillStyle = theme.card; pen.globalAlpha = strong ? .28 : .2; pen.fill(); pen.globalAlpha = 1;
  pen.lineJoin = "round"; pen.strokeStyle = theme.card; pen.lineWidth = strong ? 4.5 : 3; pen.stroke();
  pen.strokeStyle = theme.ink; pen.lineWidth = strong ? 2 : 1.25; pen.stroke();
}
function blockAt(x, y) {
  const k = Math.floor((x - plot.left) * plot.scale), row = Math.floor((plot.top + plot.h - y) * plot.scale);
  if (k < 0 || row < 0 || k >= plot.W || row >= plot.H) { return -1; }
  // Bands thinner than a finger or a pixel: look a little around.
  for (const d of [0, 1, -1, 2, -2]) {
    const id = row + d >= 0 && row + d < plot.H ? plot.ids[k * plot.H + row + d] : -1;
    if (id >= 0) { return id & ~EDGE; }
  }
  return -1;
}

// ---- the strip above every view

function drawStrip() {
  const canvas = $("strip"), box = canvas.getBoundingClientRect();
  if (!box.width) { return; }
  const [pen] = prepare(canvas, box.width, box.height), W = Math.round(box.width), H = box.height, whole = lastX();
  let state = -1;
  pen.fillStyle = theme.rest; pen.beginPath(); pen.moveTo(0, H);
  for (let k = 0; k < W; k += 1) {
    const until = happened(whole * (k + 1) / W) - 1;
    let value = state < 0 ? 0 : L.all[state];
    for (let i = Math.max(state, 0); i <= until; i += 1) { if (L.all[i] > value) { value = L.all[i]; } }
    state = Math.max(state, until);
    const y = H - (H - 3) * value / (L.peak || 1);
    pen.lineTo(k, y); pen.lineTo(k + 1, y);
  }
  pen.lineTo(W, H); pen.closePath(); pen.fill();
  pen.fillStyle = theme.line; pen.fillRect(0, H - 1, W, 1);
  if (S.tab === "timeline" && (S.a > 0 || S.b < whole)) {
    const a = S.a / whole * W, b = Math.max(S.b / whole * W, a + 2);
    pen.fillStyle = theme.card; pen.globalAlpha = .62; pen.fillRect(0, 0, a, H - 1); pen.fillRect(b, 0, W - b, H - 1); pen.globalAlpha = 1;
    pen.strokeStyle = theme.accent; pen.lineWidth = 1.5; pen.strokeRect(a + .75, .75, Math.max(b - a - 1.5, 1), H - 2);
  }
  const x = Math.max(1, Math.min(W - 1, xOf(S.chosen) / whole * W));
  pen.fillStyle = theme.accent; pen.fillRect(x - 1, 0, 2, H);
  pen.beginPath(); pen.arc(x, 4, 4, 0, 7); pen.fill();
}
function choose(event) {
  S.chosen = Math.max(0, Math.min(D.events - 1, event));
  const total = D.events ? L.all[S.chosen] : 0, blocks = chosenAlive().length, text = $("moment");
  text.textContent = "";
  text.append(make("b", "", D.events ? time(D.times[S.chosen]) : "–"), " · event " + number(S.chosen + 1) + " of " + number(D.events) + " · ",
    make("b", "", size(total)), " in " + blocksText(blocks) + (S.chosen === L.peakEvent ? " · the peak" : ""));
  $("to-peak").hidden = S.chosen === L.peakEvent || L.peakEvent < 0;
  const strip = $("strip");
  strip.setAttribute("aria-valuenow", (100 * S.chosen / Math.max(D.events - 1, 1)).toFixed(1));
  strip.setAttribute("aria-valuetext", text.textContent);
  if (S.selected < 0) { panel(); }
}

// ---- the address space

function ranges(place, blocks) {
  const own = [];
  for (let s = 0; s < D.segment_begins.length; s += 1) {
    if (D.segment_places[s] === place && D.segment_begins[s] <= S.chosen && D.segment_ends[s] > S.chosen) {
      own.push({ from: D.segment_addresses[s], to: D.segment_addresses[s] + D.segment_sizes[s], blocks: [] });
    }
  }
  own.sort((a, b) => a.from - b.from);
  const loose = [];
  let at = 0, open = null;
  for (const b of blocks) {
    const from = D.addresses[b], to = from + D.sizes[b];
    while (at < own.length && own[at].to <= from) { at += 1; }
    if (at < own.length && own[at].from <= from) { own[at].blocks.push(b); continue; }
    // No segment is known here: blocks less than a megabyte apart are one range.
    if (!open || from - open.to > 1 << 20) { open = { from, to, blocks: [] }; loose.push(open); }
    open.to = Math.max(open.to, to);
    open.blocks.push(b);
  }
  return [own.concat(loose).sort((a, b) => a.from - b.from), loose.length > 0];
}
function drawMaps() {
  const root = $("maps"), byPlace = new Map();
  root.textContent = "";
  for (const b of chosenAlive()) { const p = D.places[b]; if (!byPlace.has(p)) { byPlace.set(p, []); } byPlace.get(p).push(b); }
  for (let s = 0; s < D.segment_begins.length; s += 1) {
    const p = D.segment_places[s];
    if (D.segment_begins[s] <= S.chosen && D.segment_ends[s] > S.chosen && (S.place < 0 || S.place === p) && !byPlace.has(p)) { byPlace.set(p, []); }
  }
  if (!byPlace.size) { root.append(make("p", "hint", "Nothing is there at the chosen moment.")); }
  for (const p of [...byPlace.keys()].sort((a, b) => a - b)) { drawMap(root, p, byPlace.get(p).sort((a, b) => D.addresses[a] - D.addresses[b])); }
}
function drawMap(root, place, blocks) {
  const [own, guessed] = ranges(place, blocks), box = make("div", "map");
  let reserved = 0, used = 0, hole = 0, free = 0;
  for (const r of own) {
    let end = r.from;
    reserved += r.to - r.from;
    for (const b of r.blocks) {
      used += D.sizes[b];
      const gap = D.addresses[b] - end;
      if (gap > 0) { free += gap; hole = Math.max(hole, gap); }
      end = Math.max(end, D.addresses[b] + D.sizes[b]);
    }
    if (r.to > end) { free += r.to - end; hole = Math.max(hole, r.to - end); }
  }
  const words = make("p");
  words.append(make("b", "", size(used)), " used of ", make("b", "", size(reserved)),
    (guessed ? " spanned by " : " reserved in ") + number(own.length) + (own.length === 1 ? " range" : " ranges") +
    (free > 0 ? " · " + size(free) + " free between blocks, largest hole " + size(hole) + " · fragmentation " + share(free - hole, free) : ""));
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", D.place_names[place] + ": " + words.textContent);
  box.append(make("h2", "", D.place_names[place]), words, canvas);
  root.append(box);
  paintMap(canvas, own, reserved);
}
function paintMap(canvas, own, reserved) {
  // The ranges follow one another and wrap like text, so that holes can be compared by eye.
  const W = Math.floor(canvas.getBoundingClientRect().width), rowHeight = 20, gap = 4;
  const between = own.length > 300 ? 0 : own.length > 60 ? 2 : 5;
  const rows = Math.max(1, Math.min(18, Math.ceil(Math.sqrt(reserved / 4e6)), Math.ceil(W / 20)));
  const perPixel = Math.max(1, reserved / Math.max(40, rows * W - between * own.length));
  const ends = [];
  let at = 0;
  for (const r of own) { r.at = at; at += (r.to - r.from) / perPixel; ends.push(at); at += between; }
  const height = Math.max(1, Math.ceil(at / W - 1e-9)) * (rowHeight + gap);
  canvas.style.height = height + "px";
  const [pen] = prepare(canvas, W, height), boxes = [];
  let before = -1;
  const bar = (from, to, colour, block, rim) => {
    // Of the blocks that share a pixel, the first stands for all.
    if (to - from < .5 && Math.floor(from * 2) === before) { return; }
    before = Math.floor(from * 2);
    for (let row = Math.floor(from / W); row * W < to; row += 1) {
      const x = Math.max(from - row * W, 0), end = Math.min(to - row * W, W), y = row * (rowHeight + gap);
      pen.fillStyle = colour; pen.fillRect(x, y, Math.max(end - x, .6), rowHeight);
      if (rim && end - x > 4) { pen.fillStyle = theme.card; pen.globalAlpha = .6; pen.fillRect(end - 1, y, 1, rowHeight); pen.globalAlpha = 1; }
      if (block >= 0) { boxes.push([x, Math.max(end, x + 1), y, block]); }
    }
  };
  for (const r of own) {
    bar(r.at, r.at + (r.to - r.from) / perPixel, theme.free, -1, false);
    for (const b of r.blocks) {
      const from = r.at + (D.addresses[b] - r.from) / perPixel;
      bar(from, from + D.sizes[b] / perPixel, tone(b), b, true);
      if (b === S.selected) { boxes.marked = [from, D.sizes[b] / perPixel]; }
    }
  }
  if (boxes.marked) {
    const [from, width] = boxes.marked, x = from % W, y = Math.floor(from / W) * (rowHeight + gap);
    pen.strokeStyle = theme.ink; pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, Math.max(Math.min(width, W - x) - 2, 2), rowHeight - 2);
  }
  const find = event => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const hit = boxes.find(b => x >= b[0] && x <= b[1] && y >= b[2] && y < b[2] + rowHeight);
    return hit ? hit[3] : -1;
  };
  canvas.onpointermove = event => tipBlock(event, find(event));
  canvas.onpointerleave = () => tip();
  canvas.onclick = event => { const b = find(event); select(b); };
}

// ---- the holders

function holders() {
  const rows = new Map();
  for (const b of chosenAlive()) {
    const g = D.lineOf[D.stack_of[b]];
    let row = rows.get(g);
    if (!row) { rows.set(g, row = { name: D.lineNames[g], bytes: 0, count: 0, largest: 0, block: b, line: g }); }
    row.bytes += D.sizes[b]; row.count += 1;
    if (D.sizes[b] > row.largest) { row.largest = D.sizes[b]; row.block = b; }
  }
  return [...rows.values()];
}
function drawHolders() {
  const rows = holders(), whole = rows.reduce((sum, row) => sum + row.bytes, 0), key = S.sort === "share" ? "bytes" : S.sort;
  rows.sort((a, b) => (S.down ? -1 : 1) * (key === "name" ? a.name.localeCompare(b.name) : a[key] - b[key]));
  const body = $("holders").tBodies[0];
  body.textContent = "";
  for (const row of rows.slice(0, 200)) {
    const line = make("tr"), name = make("td"), part = make("td"), meter = make("span", "meter"), fill = make("i"), dot = make("i", "swatch");
    dot.style.background = fill.style.background = S.colour === "line" ? colourOf(row.block) : theme.accent;
    fill.style.width = 100 * row.bytes / (whole || 1) + "%";
    const [where, fn] = row.name.split(" in ");
    name.append(dot, where, make("em", "", fn ? " in " + fn : "")); name.title = row.name;
    meter.append(fill); part.append(meter, share(row.bytes, whole));
    line.append(name, make("td", "", size(row.bytes)), part, make("td", "", number(row.count)), make("td", "", size(row.largest)));
    line.onclick = () => select(row.block);
    body.append(line);
  }
  for (const button of document.querySelectorAll("th button")) {
    button.parentNode.setAttribute("aria-sort", button.dataset.by !== S.sort ? "none" : S.down ? "descending" : "ascending");
  }
  drawFlame();
}
function tree() {
  const root = { frame: -1, bytes: 0, count: 0, children: new Map() };
  for (const b of chosenAlive()) {
    let node = root;
    const stack = D.stacks[D.stack_of[b]], w = D.sizes[b];
    node.bytes += w; node.count += 1;
    for (let i = stack.length - 1; i >= 0; i -= 1) {
      let child = node.children.get(stack[i]);
      if (!child) { node.children.set(stack[i], child = { frame: stack[i], bytes: 0, count: 0, children: new Map(), up: node, block: b }); }
      node = child; node.bytes += w; node.count += 1;
    }
  }
  return root;
}
function drawFlame() {
  const canvas = $("flame"), root = tree(), W = canvas.parentNode.getBoundingClientRect().width, rowHeight = 21, boxes = [];
  if (!W) { return; }
  let top = root;
  for (const frame of S.root || []) { top = top.children.get(frame) || top; }
  const path = [];
  for (let node = top; node; node = node.up) { path.unshift(node); }
  let depth = 0;
  const place = (node, x, w, y) => {
    if (w < .7) { return; }
    boxes.push({ node, x, w, y }); depth = Math.max(depth, y + 1);
    let at = x;
    for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
      const part = node.bytes ? w * child.bytes / node.bytes : 0;
      place(child, at, part, y + 1); at += part;
    }
  };
  path.slice(0, -1).forEach((node, y) => boxes.push({ node, x: 0, w: W, y, above: true }));
  place(top, 0, W, path.length - 1);
  const height = Math.max(depth, 1) * rowHeight;
  canvas.style.height = height + "px";
  const [pen] = prepare(canvas, W, height);
  pen.textBaseline = "middle";
  for (const { node, x, w, y, above } of boxes) {
    const f = node.frame, inner = f >= 0 && D.frames[f][3];
    const base = f < 0 ? channels(theme.rest) : mix(channels(PALETTE[D.frames[f][0] % PALETTE.length]), channels(theme.card), inner ? .72 : .45);
    pen.fillStyle = css(above ? mix(base, channels(theme.card), .5) : base);
    pen.fillRect(x, y * rowHeight, Math.max(w - 1, .7), rowHeight - 1);
    if (w > 44) {
      pen.save(); pen.beginPath(); pen.rect(x, y * rowHeight, w - 5, rowHeight); pen.clip();
      pen.fillStyle = theme.ink;
      pen.fillText(f < 0 ? "everything alive, " + size(node.bytes) : D.texts[D.frames[f][2]] + (w > 200 ? "   " + short(D.texts[D.frames[f][0]]) + ":" + D.frames[f][1] : ""), x + 6, y * rowHeight + rowHeight / 2);
      pen.restore();
    }
  }
  const find = event => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = Math.floor((event.clientY - box.top) / rowHeight);
    return boxes.find(b => b.y === y && x >= b.x && x < b.x + Math.max(b.w, 2));
  };
  canvas.onpointermove = event => {
    const hit = find(event);
    tip(event, hit && size(hit.node.bytes), hit && [share(hit.node.bytes, root.bytes) + " in " + blocksText(hit.node.count), hit.node.frame < 0 ? "" : frameText(hit.node.frame)]);
  };
  canvas.onpointerleave = () => tip();
  canvas.onclick = event => {
    const hit = find(event);
    if (!hit) { return; }
    S.root = [];
    for (let node = hit.node; node.up; node = node.up) { S.root.unshift(node.frame); }
    tip(); drawFlame();
  };
}

// ---- tooltip and panel

function tip(event, head, lines) { showTip($("tip"), head && [head, ...lines], event?.clientX, event?.clientY); }
function tipBlock(event, b) {
  if (b < 0) { return tip(); }
  if (b === D.count) { return tip(event, "smaller blocks", ["Below the " + number(DRAWN) + " largest, drawn as one. A filter shows more of them."]); }
  const end = D.ends[b] < D.events;
  return tip(event, size(D.sizes[b]), [siteText(D.stack_of[b]), D.tag_names[D.tags[b]] && "tag " + D.tag_names[D.tags[b]],
    end ? "lived " + time(xEnd(b) - D.times[D.begins[b]]) : "there until the end, " + time(D.length - D.times[D.begins[b]]), D.place_names[D.places[b]]]);
}
const xEnd = b => D.ends[b] < D.events ? D.times[D.ends[b]] : D.length;
function select(b) {
  S.selected = b >= 0 && b < D.count ? b : -1;
  panel(); drawOverlay();
  if (S.tab === "segments") { drawMaps(); }
}
function panel() {
  const node = $("panel");
  node.textContent = "";
  if (S.selected < 0) { return largest(node); }
  const b = S.selected, top = make("div", "top"), dot = make("i", "swatch"), close = make("button", "panel-close", "close"), list = make("dl");
  dot.style.background = colourOf(b);
  close.onclick = () => select(-1);
  top.append(dot, make("h2", "", size(D.sizes[b])), close);
  const begun = D.times[D.begins[b]], ended = D.ends[b] < D.events;
  for (const [name, value] of [["bytes", number(D.sizes[b])], ["place", D.place_names[D.places[b]]], ["tag", D.tag_names[D.tags[b]] || "–"],
    ["address", "0x" + D.addresses[b].toString(16)], ["allocated", time(begun)], ["freed", ended ? time(D.times[D.ends[b]]) : "not while recording"],
    ["lived", time(xEnd(b) - begun) + (ended ? "" : " so far")]]) { list.append(make("dt", "", name), make("dd", "", value)); }
  node.append(top, make("p", "where", siteText(D.stack_of[b])), list, make("h3", "", "Python stack, innermost first"));
  const stack = make("ol", "stack");
  for (const f of D.stacks[D.stack_of[b]]) {
    const [file, line, name, inner] = D.frames[f], item = make("li", f === D.sites[D.stack_of[b]] ? "site" : inner ? "inner" : "");
    item.append(make("b", "", D.texts[name]), make("span", "", D.texts[file] + ":" + line));
    stack.append(item);
  }
  if (!stack.children.length) { stack.append(make("li", "", "No stack was recorded.")); }
  node.append(stack);
}
function largest(node) {
  const list = make("ul", "list");
  node.append(make("h3", "", "Largest blocks at the chosen moment"));
  for (const b of chosenAlive().slice().sort((x, y) => D.sizes[y] - D.sizes[x]).slice(0, 14)) {
    const item = make("li"), button = make("button"), dot = make("i", "swatch");
    dot.style.background = colourOf(b);
    button.append(dot, make("b", "", size(D.sizes[b])), make("span", "", siteText(D.stack_of[b])));
    button.title = siteText(D.stack_of[b]);
    button.onclick = () => select(b);
    item.append(button); list.append(item);
  }
  node.append(list.children.length ? list : make("p", "hint", "None."));
}
function legend() {
  const node = $("legend");
  node.textContent = "";
  for (const g of L.groups.slice(0, PALETTE.length)) {
    const item = make("li"), dot = make("i"), text = make("span");
    dot.style.background = css(L.rgb.get(g));
    text.append(make("b", "", groupName(g)), " " + size(L.most.get(g))); text.title = groupName(g) + ", at most " + size(L.most.get(g)) + " at one time";
    item.append(dot, text); node.append(item);
  }
  const more = L.groups.length - PALETTE.length, rest = L.kept > DRAWN;
  if (more > 0) { node.append(make("li", "", "and " + number(more) + " more, paler")); }
  if (rest) { const item = make("li"), dot = make("i"); dot.style.background = theme.rest; item.append(dot, make("span", "", "blocks below the " + number(DRAWN) + " largest")); node.append(item); }
  if (S.rss && D.rss) { node.append(make("li", "", "- - - resident memory of the process")); }
}

// ---- moving about

let waiting = false, still = 0;
// While a view with very many blocks moves it is drawn with larger pixels, and finely once it rests.
function moving() {
  if (timings.last_draw_ms > 35) { plot.coarse = true; }
  clearTimeout(still);
  if (plot.coarse) { still = setTimeout(() => { plot.coarse = false; redraw(); }, 180); }
  redraw();
}
function redraw() {
  if (waiting) { return; }
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}
function draw() {
  drawStrip();
  if (S.tab === "timeline") { drawTimeline(); }
  if (S.tab === "segments") { drawMaps(); }
  if (S.tab === "holders") { drawHolders(); }
}
function view(a, b) {
  const whole = lastX(), least = S.events ? Math.min(4, whole) : Math.min(whole, Math.max(whole * 1e-7, 200));
  const span = Math.max(least, Math.min(whole, b - a));
  S.a = Math.max(0, Math.min(whole - span, (a + b - span) / 2)); S.b = S.a + span;
  moving();
}
function zoom(factor, at) { const x = at === undefined ? (S.a + S.b) / 2 : at; view(x - (x - S.a) * factor, x + (S.b - x) * factor); }
function stretch(factor, at) {
  const high = plot.high, low = S.low, y = at === undefined ? low : at;
  S.top = y + (high - y) * factor; S.low = Math.max(0, y - (y - low) * factor);
  if (S.top >= plot.most * 1.06 && S.low === 0) { S.top = null; }
  moving();
}
function reset() { S.top = null; S.low = 0; view(0, lastX()); }
function refilter() {
  layout();
  S.chosen = Math.max(L.peakEvent, 0); S.root = null;
  if (S.selected >= 0 && !L.keep[S.selected]) { S.selected = -1; }
  choose(S.chosen); panel(); legend(); redraw();
}
function show(tab) {
  S.tab = tab;
  for (const name of ["timeline", "segments", "holders"]) {
    $("view-" + name).hidden = name !== tab;
    $("tab-" + name).setAttribute("aria-selected", String(name === tab));
    $("tab-" + name).tabIndex = name === tab ? 0 : -1;
  }
  tip(); redraw();
}
function wireTimeline() {
  const canvas = $("timeline"), held = new Map();
  let moved = 0, pinch = 0;
  const at = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const toX = px => S.a + (px - plot.left) / plot.w * (S.b - S.a);
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const [px, py] = at(event), delta = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 16 : 1);
    if (event.shiftKey) { stretch(Math.exp(delta * .0015), S.low + (plot.top + plot.h - py) / plot.h * (plot.high - S.low)); }
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { const d = event.deltaX / plot.w * (S.b - S.a); view(S.a + d, S.b + d); }
    else { zoom(Math.exp(delta * .0015), toX(px)); }
    tip();
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    canvas.setPointerCapture(event.pointerId); held.set(event.pointerId, at(event)); moved = 0;
    if (held.size === 2) { const [p, q] = [...held.values()]; pinch = Math.abs(p[0] - q[0]); }
  });
  canvas.addEventListener("pointermove", event => {
    const before = held.get(event.pointerId), now = at(event);
    if (!before) {
      const b = blockAt(...now), shown = b >= 0 && b < D.count ? b : -1;
      tipBlock(event, b);
      if (shown !== S.hover) { S.hover = shown; drawOverlay(); }
      return;
    }
    held.set(event.pointerId, now);
    if (held.size === 2) {
      const [p, q] = [...held.values()], wide = Math.abs(p[0] - q[0]);
      if (pinch > 8 && wide > 8) { zoom(pinch / wide, toX((p[0] + q[0]) / 2)); }
      pinch = wide; moved = 99;
      return;
    }
    moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
    if (moved < 4) { return; }
    canvas.classList.add("moving"); tip();
    const d = (before[0] - now[0]) / plot.w * (S.b - S.a);
    if (S.top !== null) {
      let up = (now[1] - before[1]) / plot.h * (plot.high - S.low);
      up = Math.max(up, -S.low); S.low += up; S.top += up;
    }
    view(S.a + d, S.b + d);
  });
  const release = event => { held.delete(event.pointerId); canvas.classList.remove("moving"); };
  canvas.addEventListener("pointerup", event => {
    const single = held.size === 1;
    release(event);
    if (!single || moved >= 4) { return; }
    const [px, py] = at(event);
    if (px >= plot.left && px <= plot.left + plot.w) {
      choose(happened(toX(px)) - 1); select(blockAt(px, py)); drawStrip();
      if (event.pointerType === "touch") { tip(); }
    }
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { tip(); if (S.hover >= 0) { S.hover = -1; drawOverlay(); } });
  canvas.addEventListener("dblclick", reset);
  canvas.addEventListener("keydown", event => {
    const step = (S.b - S.a) * .15, keys = { ArrowLeft: () => view(S.a - step, S.b - step), ArrowRight: () => view(S.a + step, S.b + step),
      ArrowUp: () => stretch(.8), ArrowDown: () => stretch(1.25), "+": () => zoom(.7), "=": () => zoom(.7), "-": () => zoom(1 / .7), Home: () => choosePeak() };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
}
function choosePeak() { choose(L.peakEvent); redraw(); }
function wireStrip() {
  const strip = $("strip");
  const set = event => {
    const box = strip.getBoundingClientRect(), W = box.width;
    const x = Math.max(0, Math.min(1, (event.clientX - box.left) / W)) * lastX();
    choose(happened(x) - 1); redraw();
  };
  strip.addEventListener("pointerdown", event => { strip.setPointerCapture(event.pointerId); set(event); });
  strip.addEventListener("pointermove", event => { if (event.buttons) { set(event); } });
  strip.addEventListener("keydown", event => {
    const far = Math.max(1, Math.round(D.events / 50)), steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -far, PageDown: far, Home: -D.events, End: D.events };
    if (steps[event.key]) { event.preventDefault(); choose(S.chosen + steps[event.key]); redraw(); }
  });
}
function wire() {
  const tabs = ["timeline", "segments", "holders"];
  tabs.forEach((name, i) => {
    $("tab-" + name).onclick = () => show(name);
    $("tab-" + name).addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { const to = tabs[(i + step + 3) % 3]; show(to); $("tab-" + to).focus(); }
    });
  });
  const options = (id, first, names) => {
    const node = $(id), all = make("option", "", first);
    all.value = "-1"; node.append(all);
    names.forEach(([value, text]) => { const option = make("option", "", text); option.value = String(value); node.append(option); });
    node.hidden = names.length < 2;
    node.onchange = () => { S[id] = +node.value; refilter(); };
  };
  const used = column => [...new Set(column)].sort((a, b) => a - b);
  options("place", "all places", used(D.places).map(p => [p, D.place_names[p]]));
  options("tag", "all tags", used(D.tags).map(t => [t, D.tag_names[t] || "(no tag)"]));
  let later = 0;
  $("search").oninput = () => { clearTimeout(later); later = setTimeout(() => { S.text = $("search").value; refilter(); }, 160); };
  $("colour").onchange = () => { S.colour = $("colour").value; colours(); legend(); panel(); redraw(); };
  $("rss").onchange = () => { S.rss = $("rss").checked; legend(); redraw(); };
  $("rss-label").hidden = !D.rss;
  const axis = events => () => {
    if (S.events === events) { return; }
    const a = happened(S.a), b = happened(S.b), full = S.a <= 0 && S.b >= lastX();
    S.events = events;
    $("by-time").setAttribute("aria-pressed", String(!events)); $("by-event").setAttribute("aria-pressed", String(events));
    if (full) { view(0, lastX()); } else { view(xOf(a), xOf(b)); }
  };
  $("by-time").onclick = axis(false); $("by-event").onclick = axis(true);
  $("zoom-in").onclick = () => zoom(.6); $("zoom-out").onclick = () => zoom(1 / .6); $("zoom-reset").onclick = reset;
  $("to-peak").onclick = choosePeak;
  document.querySelectorAll("th button").forEach(button => { button.onclick = () => {
    S.down = S.sort === button.dataset.by ? !S.down : button.dataset.by !== "name";
    S.sort = button.dataset.by; drawHolders();
  }; });
  document.addEventListener("keydown", event => {
    if (event.key !== "Escape") { return; }
    tip();
    if (S.root && S.root.length && S.tab === "holders") { S.root = null; redraw(); } else if (S.selected >= 0) { select(-1); } else { reset(); }
  });
  wireTimeline(); wireStrip();
  new ResizeObserver(redraw).observe($("app"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); colours(); legend(); panel(); redraw(); });
}
function tiles() {
  const end = D.events ? L.all[D.events - 1] : 0;
  const rows = [["peak", size(L.peak)], ["time of the peak", L.peakEvent < 0 ? "–" : time(D.times[L.peakEvent])], ["recorded", time(D.length)],
    ["events", number(D.events)], ["blocks", number(D.count)], ["left at the end", size(end)]];
  if (D.rss && D.rss.bytes.length) { rows.push(["peak of the process", size(D.rss.bytes.reduce((a, b) => Math.max(a, b), 0))]); }
  rows.forEach(([name, value], i) => { const box = make("div", i ? "" : "first"); box.append(make("dt", "", name), make("dd", "", value)); $("tiles").append(box); });
}
function tables() {
  // Stacks with the same source line are one line.
  const names = new Map();
  D.lineOf = Int32Array.from(D.stacks, (_, s) => {
    const name = siteText(s);
    if (!names.has(name)) { names.set(name, names.size); }
    return names.get(name);
  });
  D.lineNames = [...names.keys()];
}
async function start() {
  const begun = performance.now();
  if (typeof DecompressionStream === "undefined") { throw new Error("This browser is too old to open the recording: it has no DecompressionStream. Firefox 113, Chrome 80 and Safari 16.4 have it."); }
  await decode();
  tables();
  timings.decode_ms = performance.now() - begun;
  readTheme();
  layout();
  const rss = D.rss ? D.rss.bytes.reduce((a, b) => Math.max(a, b), 0) : 0;
  S.rss = $("rss").checked = rss > 0 && rss < 2.5 * L.peak;
  S.b = lastX(); S.chosen = Math.max(L.peakEvent, 0);
  tiles(); wire();
  $("app").hidden = false;
  choose(S.chosen); panel(); legend();
  const drawing = performance.now();
  draw();
  timings.first_draw_ms = performance.now() - drawing;
  timings.events = D.events; timings.blocks = D.count;
}
start().catch(error => {
  $("message").textContent = "The recording cannot be shown: " + error.message; $("message").hidden = false;
  $("words").open = true; console.error(error);
});
})();
