
// One recording of residency. Every text reaches the page through textContent or a canvas, so
// nothing in a recording can become markup. What is narrower than a pixel is added up by pixel.
(() => {
const { size, make, inflate, ticks, above, tip } = window.holdfast;
const STOPS = ["#3563e0", "#1591cf", "#12a394", "#55a839", "#c9a015", "#e3742f", "#d94a78", "#9254d8"];
const GAP = 10, RULER = 24, RIGHT = 10;
const KINDS = ["copy", "decode", "stay", "stall", "pass", "mark"];

// ---- texts

function time(ns) {
  const far = Math.abs(ns);
  if (far < 1e3) { return ns.toFixed(0) + " ns"; }
  if (far < 1e6) { return (ns / 1e3).toFixed(far < 1e5 ? 1 : 0) + " µs"; }
  if (far < 1e9) { return (ns / 1e6).toFixed(far < 1e7 ? 2 : 1) + " ms"; }
  return (ns / 1e9).toFixed(3) + " s";
}
function mixed(a, b, part) {
  const of = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return "#" + [0, 1, 2].map(i => Math.round(of(a, i) + (of(b, i) - of(a, i)) * part)
    .toString(16).padStart(2, "0")).join("");
}
function ramp(part) {
  const at = Math.min(Math.max(part, 0), 1) * (STOPS.length - 1), low = Math.floor(at);
  return mixed(STOPS[low], STOPS[Math.min(low + 1, STOPS.length - 1)], at - low);
}

// ---- decoding

function decoded(data) {
  for (const kind of KINDS) {
    const found = data[kind], n = found.step.length;
    found.n = n;
    found.a = new Float64Array(n);
    found.b = new Float64Array(n);
    let at = 0;
    for (let i = 0; i < n; i += 1) {
      at += found.step[i];
      found.a[i] = at;
      found.b[i] = at + found.length[i];
    }
  }
  data.layers = data.rows.reduce((most, row) => Math.max(most, row[3] + 1), 0);
  data.of = data.rows.map(() => []);
  for (let i = 0; i < data.stay.n; i += 1) { data.of[data.stay.row[i]].push(i); }
  // A row is as high as it has bytes; rows without any can be seen all the same.
  const whole = data.rows.reduce((sum, row) => sum + row[2], 0) || 1;
  let top = 0;
  data.tops = data.rows.map(row => { const at = top; top += row[2] + whole / 30000; return at; });
  data.tops.push(top || 1);
  data.many = new Set(data.rows.map(row => row[0])).size > 1;
  return data;
}
class Chart {
  constructor(root, data) {
    this.root = root;
    this.D = data;
    this.canvas = root.querySelector(".hf-canvas");
    this.over = root.querySelector(".hf-over");
    this.tip = root.querySelector(".hf-tip");
    this.a = 0;
    this.b = data.length_ns;
    this.chosen = -1;
    this.colours();
    this.listen();
    new ResizeObserver(() => this.ask()).observe(this.canvas);
    this.draw();
  }

  // ---- colours and places

  colours() {
    const style = getComputedStyle(this.root), of = name => style.getPropertyValue("--hf-" + name).trim();
    this.C = {};
    for (const name of ["card", "ink", "soft", "faint", "line", "well", "kept", "compute", "stall", "pass",
      "decode", "evict", "demand", "accent"]) { this.C[name] = of(name); }
    const n = Math.max(1, this.D.layers - 1);
    // Neighbours differ in lightness as well, so that their border is seen.
    this.layer = Array.from({ length: this.D.layers }, (_, i) =>
      mixed(ramp(i / n), i % 2 ? "#ffffff" : "#000000", i % 2 ? 0.14 : 0.04));
    const legend = this.root.querySelector(".hf-legend"), D = this.D;
    const ramps = Array.from({ length: 9 }, (_, i) => ramp(i / 8)).join(", ");
    const keys = [[this.C.compute, "computing"], [this.C.stall, "standing still"],
      ["linear-gradient(90deg, " + ramps + ")", "streamed, first layer to last"],
      D.stay.kept.includes(1) && [this.C.kept, "stays on the device"],
      D.mark.evict.includes(1) && [this.C.evict, "evicted"],
      D.mark.evict.includes(0) && [this.C.demand, "loaded on demand"]];
    legend.replaceChildren(...keys.filter(Boolean).map(([colour, text], i) => {
      const item = make("li"), dot = make("i", i === 2 ? "hf-ramp" : "");
      dot.style.background = colour;
      item.append(dot, text);
      return item;
    }));
  }
  arrange() {
    const D = this.D, high = this.high;
    this.left = this.wide < 620 ? 88 : 138;
    this.lanes = [["pass", "passes", 24], ["compute", "computing", 34], ["copy", "link", 44]];
    if (D.decode.n) { this.lanes.push(["decode", "decoder", 26]); }
    if (D.mark.n) { this.lanes.push(["mark", "evictions, loads", 20]); }
    let y = RULER;
    this.place = {};
    for (const [name, , tall] of this.lanes) { this.place[name] = [y, tall]; y += tall + GAP; }
    this.place.stay = [y, Math.max(60, high - y - 4)];
  }
  x(ns) { return this.left + (ns - this.a) / (this.b - this.a) * (this.wide - this.left - RIGHT); }
  ns(x) { return this.a + (x - this.left) / (this.wide - this.left - RIGHT) * (this.b - this.a); }
  rowTop(row) {
    const [y, tall] = this.place.stay;
    return y + this.D.tops[row] / this.D.tops[this.D.rows.length] * tall;
  }

  // ---- drawing

  ask() {
    if (!this.asked) {
      this.asked = requestAnimationFrame(() => { this.asked = 0; this.draw(); });
    }
  }
  sized(canvas) {
    const ratio = window.devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight;
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
    }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, wide, high);
    return [g, wide, high];
  }
  draw() {
    const started = performance.now();
    let g;
    [g, this.wide, this.high] = this.sized(this.canvas);
    if (this.wide < 160) { return; }
    this.arrange();
    this.g = g;
    this.count = 0;
    this.font = getComputedStyle(this.root).fontFamily;
    this.ruler();
    this.names();
    g.save();
    g.beginPath();
    g.rect(this.left, 0, this.wide - this.left - RIGHT, this.high);
    g.clip();
    this.passes();
    this.computing();
    this.lane("copy", i => this.layer[this.D.rows[this.D.copy.row[i]]?.[3]] || this.C.faint);
    if (this.D.decode.n) { this.lane("decode", () => this.C.decode); }
    this.map();
    this.marks();
    g.restore();
    this.drawOver();
    Object.assign(this.root.dataset, { from: Math.round(this.a), to: Math.round(this.b),
      drawn: this.count, ms: (performance.now() - started).toFixed(1) });
  }
  ruler() {
    const g = this.g, C = this.C, wide = this.wide - this.left - RIGHT, zero = this.D.from_ns;
    const [times, step] = ticks(this.a + zero, this.b + zero, Math.max(2, wide / 110));
    g.font = "11.5px " + this.font;
    g.textAlign = "center";
    g.textBaseline = "middle";
    for (const t of times) {
      const x = Math.round(this.x(t - zero)) + 0.5;
      g.strokeStyle = C.line;
      g.beginPath();
      g.moveTo(x, RULER - 6);
      g.lineTo(x, this.high);
      g.stroke();
      g.fillStyle = C.soft;
      const digits = Math.max(0, -Math.floor(Math.log10(step / this.unit()[0])));
      const text = (t / this.unit()[0]).toFixed(Math.min(digits, 6)) + " " + this.unit()[1];
      if (x - this.left > 16 && this.wide - x > 26) { g.fillText(text, x, 9); }
    }
  }
  unit() {
    const far = this.b - this.a;
    return far < 2e4 ? [1e3, "µs"] : far < 2e9 ? [1e6, "ms"] : [1e9, "s"];
  }
  names() {
    const g = this.g, C = this.C;
    g.textAlign = "right";
    g.font = "12.5px " + this.font;
    for (const [name, text] of this.lanes) {
      const [y, tall] = this.place[name];
      g.fillStyle = C.soft;
      g.fillText(this.fit(text, this.left - 14), this.left - 12, y + tall / 2);
      g.fillStyle = C.well;
      g.fillRect(this.left, y, this.wide - this.left - RIGHT, tall);
    }
    const [y, tall] = this.place.stay;
    g.fillStyle = C.well;
    g.fillRect(this.left, y, this.wide - this.left - RIGHT, tall);
    this.rowNames();
  }
  // Names of layers, as many as there is room for.
  rowNames() {
    const g = this.g, D = this.D, [y, tall] = this.place.stay;
    g.font = "11px " + this.font;
    let below = y - 4, before = -1;
    for (let i = 0; i < D.rows.length; i += 1) {
      const [module, name, , layer] = D.rows[i];
      if (layer === before) { continue; }
      before = layer;
      const top = this.rowTop(i) + 6;
      if (top < below || top > y + tall - 4) { continue; }
      below = top + 15;
      g.fillStyle = this.C.soft;
      g.fillText(this.fit(this.layerName(module, name), this.left - 26), this.left - 22, top);
      g.fillStyle = this.layer[layer];
      g.fillRect(this.left - 16, top - 4, 8, 8);
    }
  }
  layerName(module, name) {
    const words = name.split("."), at = words.findIndex(word => /^\d+$/.test(word));
    return (at >= 0 ? words.slice(0, at + 1) : words.slice(0, -1)).join(".") || name || module;
  }
  // The end of a name tells more than its beginning.
  fit(text, room) {
    const g = this.g;
    if (g.measureText(text).width <= room) { return text; }
    let cut = 1;
    while (cut < text.length && g.measureText("…" + text.slice(cut)).width > room) { cut += 1; }
    return "…" + text.slice(cut);
  }
  first(found) { return Math.max(0, above(found.a, this.a) - 1); }
  passes() {
    const g = this.g, P = this.D.pass, W = this.D.texts, [y, tall] = this.place.pass;
    g.textAlign = "left";
    g.font = "12px " + this.font;
    for (let i = this.first(P); i < P.n && P.a[i] <= this.b; i += 1) {
      const x = this.x(P.a[i]), wide = Math.max(1, this.x(P.b[i]) - x);
      g.fillStyle = this.C.pass;
      g.fillRect(x, y, Math.max(0.6, wide - 1), tall);
      this.count += 1;
      const room = Math.min(x + wide, this.wide - RIGHT) - Math.max(x, this.left) - 12;
      const text = (this.D.many ? W[P.module[i]] + " " : "") + W[P.name[i]] + " " + (i + 1), why = W[P.reason[i]];
      const wanted = [why ? text + " · " + why : text, text, String(i + 1)].find(t => g.measureText(t).width <= room);
      g.fillStyle = this.C.ink;
      if (wanted) { g.fillText(wanted, Math.max(x, this.left) + 7, y + tall / 2 + 0.5); }
    }
  }
  // Blocks of a lane that never overlap; where they are narrow, how much of a pixel they take.
  spans(found, y, tall, colour) {
    const g = this.g, wide = Math.ceil(this.wide);
    const parts = new Float64Array(wide + 2), best = new Float64Array(wide + 2), of = new Int32Array(wide + 2).fill(-1);
    for (let i = this.first(found); i < found.n && found.a[i] <= this.b; i += 1) {
      const x = Math.max(this.x(found.a[i]), this.left - 2), end = Math.min(this.x(found.b[i]), this.wide + 2);
      if (end < this.left - 1) { continue; }
      if (end - x >= 2) {
        g.fillStyle = colour(i);
        g.fillRect(x, y, end - x - (end - x > 5 ? 1 : 0), tall);
        this.count += 1;
        continue;
      }
      for (let p = Math.max(0, Math.floor(x)); p <= Math.min(wide, Math.floor(end)); p += 1) {
        const part = Math.max(Math.min(end, p + 1) - Math.max(x, p), 1e-3);
        parts[p] += part;
        if (part > best[p]) { best[p] = part; of[p] = i; }
      }
    }
    for (let p = 0; p <= wide; p += 1) {
      if (of[p] < 0) { continue; }
      const high = Math.max(2, tall * Math.min(1, parts[p]));
      g.fillStyle = colour(of[p]);
      g.fillRect(p, y + tall - high, 1, high);
      this.count += 1;
    }
  }
  lane(name, colour) {
    const [y, tall] = this.place[name];
    this.spans(this.D[name], y, tall, colour);
  }
  computing() {
    const [y, tall] = this.place.compute;
    this.spans(this.D.pass, y, tall, () => this.C.compute);
    this.spans(this.D.stall, y, tall, () => this.C.stall);
  }
  map() {
    for (let row = 0; row < this.D.rows.length; row += 1) { this.row(row, 1, 0.3, 0); }
    // What is streamed is there for a moment only: it is seen at any scale.
    for (let row = 0; row < this.D.rows.length; row += 1) { this.row(row, 0, 2, 2); }
  }
  row(row, kept, least, narrowest) {
    const g = this.g, D = this.D, S = D.stay, y = this.rowTop(row), below = this.rowTop(row + 1) - y;
    const tall = Math.max(least, below - (below > 4 ? 1 : 0));
    let pixel = -1, part = 0;
    g.fillStyle = kept ? this.C.kept : this.layer[D.rows[row][3]];
    const flush = () => {
      if (part > 0) {
        g.globalAlpha = Math.max(0.55, Math.min(1, part));
        g.fillRect(pixel, y, Math.max(1, narrowest), tall);
        g.globalAlpha = 1;
        this.count += 1;
      }
      part = 0;
    };
    for (const i of D.of[row]) {
      if (S.a[i] > this.b) { break; }
      if (S.b[i] < this.a || S.kept[i] !== kept) { continue; }
      const x = this.x(S.a[i]), end = this.x(S.b[i]);
      if (end - x >= 1.5) {
        flush();
        g.fillRect(Math.max(x, this.left - 2), y, Math.min(end, this.wide) - Math.max(x, this.left - 2), tall);
        this.count += 1;
        continue;
      }
      if (Math.floor(x) !== pixel) { flush(); pixel = Math.floor(x); }
      part += Math.max(end - x, 1e-3);
    }
    flush();
  }
  marks() {
    const M = this.D.mark, g = this.g;
    if (!M.n) { return; }
    const [y, tall] = this.place.mark, seen = [-9, -9];
    for (let i = this.first(M); i < M.n && M.a[i] <= this.b; i += 1) {
      const x = this.x(M.a[i]), evict = M.evict[i];
      if (x - seen[evict] < 1) { continue; }
      seen[evict] = x;
      g.fillStyle = evict ? this.C.evict : this.C.demand;
      g.beginPath();
      if (evict) {
        g.moveTo(x - 5, y + 4); g.lineTo(x + 5, y + 4); g.lineTo(x, y + tall - 4);
      } else {
        g.arc(x, y + tall / 2, 3, 0, 7);
      }
      g.fill();
      this.count += 1;
    }
  }
  drawOver() {
    const [g] = this.sized(this.over), spot = this.spot;
    if (!spot) { return; }
    if (spot.x !== undefined) {
      g.strokeStyle = this.C.soft;
      g.setLineDash([3, 3]);
      g.beginPath();
      g.moveTo(Math.round(spot.x) + 0.5, RULER - 6);
      g.lineTo(Math.round(spot.x) + 0.5, this.high);
      g.stroke();
      g.setLineDash([]);
    }
    if (spot.box) {
      const [a, b, y, tall] = spot.box, x = Math.max(this.left, this.x(a));
      g.strokeStyle = this.C.ink;
      g.lineWidth = 1.5;
      g.strokeRect(x - 0.5, y - 0.5, Math.max(2, Math.min(this.x(b), this.wide - RIGHT) - x), tall + 1);
    }
  }

  // ---- what is under the pointer

  find(found, at, reach) {
    const end = above(found.a, at + reach);
    let best = -1, far = Infinity;
    for (let i = end - 1; i >= Math.max(0, end - 40); i -= 1) {
      const away = at < found.a[i] ? found.a[i] - at : Math.max(0, at - found.b[i]);
      if (away < far && away <= reach) { best = i; far = away; }
    }
    return best;
  }
  under(x, y) {
    if (x < this.left || x > this.wide - RIGHT) { return null; }
    const at = this.ns(x), reach = this.ns(x + 3) - at;
    for (const [name] of this.lanes) {
      const [top, tall] = this.place[name];
      if (y >= top - GAP / 2 && y < top + tall + GAP / 2) { return this.inLane(name, at, reach, top, tall); }
    }
    return y >= this.place.stay[0] && y <= this.place.stay[0] + this.place.stay[1] ? this.inMap(at, reach, y) : null;
  }
  inLane(name, at, reach, top, tall) {
    const D = this.D, W = D.texts;
    if (name === "compute") {
      const i = this.find(D.stall, at, reach);
      if (i >= 0) { return this.stalled(i); }
      const p = this.find(D.pass, at, 0);
      return p < 0 ? null : { lines: ["computing", "in " + W[D.pass.name[p]] + " " + (p + 1)] };
    }
    const found = D[name], i = this.find(found, at, name === "mark" ? 2 * reach : reach);
    if (i < 0) { return null; }
    const lasted = found.b[i] - found.a[i], box = [found.a[i], found.b[i], top, tall];
    if (name === "pass") {
      const lines = [W[found.name[i]] + " " + (i + 1), W[found.module[i]], time(lasted), W[found.reason[i]]];
      return { lines, box };
    }
    if (name === "mark") {
      const near = [];
      for (let k = 0; k < found.n; k += 1) { if (found.evict[k] === found.evict[i] && Math.abs(found.a[k] - found.a[i]) <= reach) { near.push(k); } }
      const what = found.evict[i] ? "evicted" : "loaded on demand";
      return { lines: [W[found.name[i]], what + (found.nbytes[i] ? ", " + size(found.nbytes[i]) : ""), W[found.reason[i]],
        near.length > 1 ? "and " + (near.length - 1) + " more here" : ""] };
    }
    const rate = lasted ? (found.nbytes[i] / lasted).toFixed(1) + " GB/s" : "";
    return { lines: [...this.rowLines(found.row[i]), [size(found.nbytes[i]), rate].filter(Boolean).join(" at "),
      (name === "copy" ? "over the link in " : "decoded in ") + time(lasted)], box };
  }
  stalled(i) {
    const S = this.D.stall, [top, tall] = this.place.compute;
    return { lines: ["stalled for " + time(S.b[i] - S.a[i]), "waiting for " + this.D.texts[S.name[i]], this.D.texts[S.reason[i]]],
      box: [S.a[i], S.b[i], top, tall] };
  }
  rowLines(row) {
    const found = this.D.rows[row];
    return found ? [found[1] || "(no name)", this.D.many ? found[0] : ""] : ["(no name)"];
  }
  inMap(at, reach, y) {
    const D = this.D, S = D.stay, [top, tall] = this.place.stay, whole = D.tops[D.rows.length];
    const middle = above(D.tops, (y - top) / tall * whole) - 1;
    // Thin rows are hard to hit: the nearest one that has something here will do.
    for (let away = 0; away < 60; away += 1) {
      for (const row of away ? [middle - away, middle + away] : [middle]) {
        if (row < 0 || row >= D.rows.length || (away && Math.abs(this.rowTop(row) - y) > 4 && Math.abs(this.rowTop(row + 1) - y) > 4)) { continue; }
        for (const i of D.of[row]) {
          if (S.a[i] <= at + reach && S.b[i] >= at - reach) { return this.stayed(row, i); }
        }
      }
    }
    return middle < 0 || middle >= D.rows.length ? null
      : { lines: [...this.rowLines(middle), size(D.rows[middle][2]), "not on the device at this time"] };
  }
  stayed(row, i) {
    const S = this.D.stay, y = this.rowTop(row), open = S.b[i] >= this.D.length_ns;
    return { lines: [...this.rowLines(row), size(S.nbytes[i]) + (S.kept[i] ? ", stays on the device" : ", streamed"),
      "there for " + time(S.b[i] - S.a[i]) + (open ? ", until the end" : "")], box: [S.a[i], S.b[i], y, this.rowTop(row + 1) - y] };
  }
  show(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const found = this.under(x, y);
    this.spot = x >= this.left && x <= this.wide - RIGHT ? { x, box: found?.box } : null;
    this.drawOver();
    if (!found) { this.tip.hidden = true; return; }
    this.tell([...found.lines, "at " + time(this.ns(x) + this.D.from_ns)], event.clientX, event.clientY);
  }
  tell(lines, x, y) { tip(this.tip, lines, x, y); }
  hide() { this.spot = null; this.tip.hidden = true; this.drawOver(); }

  // ---- moving about

  look(a, b) {
    const whole = this.D.length_ns, far = Math.min(Math.max(b - a, Math.min(100, whole)), whole);
    const middle = (a + b) / 2;
    this.a = Math.min(Math.max(middle - far / 2, 0), whole - far);
    this.b = this.a + far;
    this.tip.hidden = true;
    this.spot = null;
    this.ask();
  }
  zoom(times, at = (this.a + this.b) / 2) {
    const far = Math.min((this.b - this.a) * times, this.D.length_ns), part = (at - this.a) / (this.b - this.a);
    this.look(at - part * far, at + (1 - part) * far);
  }
  move(part) { const by = (this.b - this.a) * part; this.look(this.a + by, this.b + by); }
  all() { this.look(0, this.D.length_ns); }
  go(a, b) {
    const far = Math.max((b - a) * 4, this.D.length_ns / 2000);
    this.look((a + b) / 2 - far, (a + b) / 2 + far);
  }
  next(step) {
    const S = this.D.stall;
    if (!S.n) { return; }
    const wide = this.b - this.a < this.D.length_ns * 0.999;
    this.chosen = this.chosen < 0 ? (wide ? above(S.a, this.a) % S.n : 0) : (this.chosen + step + S.n) % S.n;
    const i = this.chosen;
    this.go(S.a[i], S.b[i]);
    this.draw();
    const { lines, box } = this.stalled(i), at = this.canvas.getBoundingClientRect();
    this.spot = { box };
    this.drawOver();
    this.tell(lines, at.left + this.x((S.a[i] + S.b[i]) / 2), at.top + this.place.compute[0] + 20);
    this.root.querySelector(".hf-status").textContent = lines.join(", ");
  }
  listen() {
    const canvas = this.canvas;
    let from = null;
    canvas.addEventListener("wheel", event => {
      if (event.deltaY > 0 && !event.shiftKey && this.b - this.a >= this.D.length_ns) { return; }  // the page scrolls on
      event.preventDefault();
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) { this.move(sideways / 800); return; }
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), this.ns(Math.max(this.left, event.offsetX)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      from = [event.clientX, this.a, this.b];
      canvas.setPointerCapture(event.pointerId);
      this.show(event);
    });
    canvas.addEventListener("pointermove", event => {
      if (!from || Math.abs(event.clientX - from[0]) < 3) { this.show(event); return; }
      canvas.classList.add("hf-moving");
      const by = (from[0] - event.clientX) / (this.wide - this.left - RIGHT) * (from[2] - from[1]);
      this.look(from[1] + by, from[2] + by);
    });
    const end = () => { from = null; canvas.classList.remove("hf-moving"); };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => this.hide());
    canvas.addEventListener("dblclick", () => this.all());
    canvas.addEventListener("keydown", event => this.key(event));
    for (const button of this.root.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
    for (const button of this.root.querySelectorAll("[data-start]")) {
      button.addEventListener("click", () => {
        const a = Number(button.dataset.start) - this.D.from_ns, b = Number(button.dataset.end) - this.D.from_ns;
        this.chosen = Math.max(0, above(this.D.stall.a, a + 1) - 1);
        this.go(a, b);
        canvas.scrollIntoView({ block: "center" });
      });
    }
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours(); this.ask(); });
  }
  act(what) {
    ({ in: () => this.zoom(1 / 1.6), out: () => this.zoom(1.6), all: () => this.all(), next: () => this.next(1),
      before: () => this.next(-1), left: () => this.move(-0.2), right: () => this.move(0.2) })[what]();
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    const what = { "+": "in", "=": "in", "-": "out", "_": "out", ArrowLeft: "left", ArrowRight: "right", Escape: "all",
      Home: "all", n: "next", N: "before", p: "before" }[event.key];
    if (what) { event.preventDefault(); this.act(what); }
  }
}

for (const root of document.querySelectorAll(".hf-residency:not([data-state])")) {
  root.dataset.state = "reading";
  inflate(root.querySelector(".hf-data").textContent.trim()).then(bytes => {
    new Chart(root, decoded(JSON.parse(new TextDecoder().decode(bytes))));
    root.dataset.state = "drawn";
  }).catch(error => {
    root.dataset.state = "failed";
    root.querySelector(".hf-hint").textContent = "The picture cannot be drawn: " + error.message;
    console.error(error);
  });
}
})();
