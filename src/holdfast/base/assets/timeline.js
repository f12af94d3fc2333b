
// Memory over time, stacked or as lines. All panels share one axis of time: drag across one to
// zoom, double click to see all again.
(() => {
const { size, make, ticks, above, tip } = window.holdfast, $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent), { panels, marks, colours } = data;
const WIDTH = 1120, LEFT = 78, RIGHT = 1104, TOP = 54, BOTTOM = 300, HEIGHT = 328;
const LETTER = 7.5, NEAREST = 4;  // pixels: a letter, rather too wide; two marks, at least
const END = Math.max(data.duration_s, 1e-3);
let view = [0, END], drag = null;

function node(name, attributes, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, typeof value === "number" ? +value.toFixed(1) : value);
  }
  made.append(...inside);
  return made;
}
const x = at_s => LEFT + (RIGHT - LEFT) * (at_s - view[0]) / (view[1] - view[0]);
const stacked = panel => panel.kind !== "lines";
const colour = (panel, i) => panel.layers[i].name === "others" ? "rest" : "c" + i % 8;
const most = numbers => numbers.reduce((high, one) => Math.max(high, one || 0), 0);
function time(s) {
  return s >= 60 ? Math.floor(s / 60) + " min " + (s % 60).toFixed(0) + " s"
    : s >= 1 ? s.toFixed(2) + " s" : (s * 1000).toFixed(0) + " ms";
}

// The sums below each layer, once for each panel: sums[layer][moment].
function sum(panel) {
  panel.sums = [panel.at_s.map(() => 0)];
  for (const layer of panel.layers) {
    const below = panel.sums[panel.sums.length - 1];
    panel.sums.push(layer.nbytes.map((count, at) => (stacked(panel) ? below[at] : 0) + (count || 0)));
  }
  panel.tops = panel.at_s.map((_, at) => panel.sums.reduce((high, sums) => Math.max(high, sums[at]), 0));
}
// The moments in view and one on each side.
function seen(panel) {
  const to = above(panel.at_s, view[1]);
  return [Math.max(above(panel.at_s, view[0]) - 1, 0), Math.min(to, panel.at_s.length - 1)];
}
function areas(panel, y) {
  const [from, to] = seen(panel);
  return panel.layers.map((layer, at) => {
    const up = [], down = [];
    for (let i = from; i <= to; i += 1) {
      const place = x(panel.at_s[i]).toFixed(1);
      up.push(place + "," + y(panel.sums[at + 1][i]).toFixed(1));
      down.push(place + "," + y(panel.sums[at][i]).toFixed(1));
    }
    return node("path", { class: "layer " + colour(panel, at),
      d: "M" + up.join("L") + "L" + down.reverse().join("L") + "Z" });
  });
}
// A line has gaps where its value is unknown; a single point is a dot.
function lines(panel, y) {
  const [from, to] = seen(panel), shapes = [];
  panel.layers.forEach((layer, number) => {
    const look = colour(panel, number);
    let points = [];
    for (let i = from; i <= to + 1; i += 1) {
      if (i <= to && layer.nbytes[i] !== null) { points.push([x(panel.at_s[i]), y(layer.nbytes[i])]); continue; }
      if (points.length === 1) {
        shapes.push(node("circle", { class: look, cx: points[0][0], cy: points[0][1], r: 3 }));
      } else if (points.length) {
        const path = points.map(p => p.map(v => v.toFixed(1)).join(",")).join(" ");
        shapes.push(node("path", { class: "area " + look, d: "M" + points[0][0].toFixed(1) + "," + BOTTOM + " L" + path
          + " L" + points[points.length - 1][0].toFixed(1) + "," + BOTTOM + " Z" }),
          node("polyline", { class: look, points: path }));
      }
      points = [];
    }
  });
  return shapes;
}
function peaks(panel, y) {
  const shapes = [];
  let taken = null;
  panel.layers.forEach((layer, number) => {
    const high = most(layer.nbytes), at = layer.nbytes.indexOf(high), px = x(panel.at_s[at]);
    if (at < 0 || px < LEFT || px > RIGHT) { return; }
    const look = "peak " + colour(panel, number), side = px > (LEFT + RIGHT) / 2 ? "end" : "start";
    let up = y(high) - 10;
    if (taken && Math.abs(taken[0] - px) < 170 && Math.abs(taken[1] - up) < 16) { up = taken[1] + (up > taken[1] ? 16 : -16); }
    taken = [px, up];
    shapes.push(node("circle", { class: look, cx: px, cy: y(high), r: 4 }),
      node("text", { class: look, x: px, y: up, "text-anchor": side }, layer.name + " peak " + size(high)));
  });
  return shapes;
}
function scale(panel) {
  const [from, to] = seen(panel), high = Math.max(stacked(panel) ? 1 : 1e6, most(panel.tops.slice(from, to + 1)));
  const limit = panel.capacity_bytes;
  return limit && limit < 1.6 * high ? Math.max(limit, high) * 1.06 : high * 1.15;
}
function axes(panel, high, y) {
  const levels = [], texts = [], factor = 1000 ** Math.floor(Math.log10(high) / 3);
  const level = (at, name) => node("line", { class: name, x1: LEFT, x2: RIGHT, y1: at, y2: at });
  for (const value of ticks(0, high / factor, 4)[0]) {
    const at = y(value * factor);
    levels.push(level(at, "grid"));
    texts.push(node("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, size(value * factor)));
  }
  for (const value of ticks(view[0], view[1], 8)[0]) {
    texts.push(node("line", { class: "grid", x1: x(value), x2: x(value), y1: BOTTOM, y2: BOTTOM + 5 }),
      node("text", { x: x(value), y: BOTTOM + 19, "text-anchor": "middle" }, Number(value.toPrecision(6)) + " s"));
  }
  if (panel.capacity_bytes && panel.capacity_bytes <= high) { levels.push(level(y(panel.capacity_bytes), "limit")); }
  return [levels, texts];
}
// A name that does not fit its band is drawn above, if there is space.
function stages(panel) {
  const shapes = [];
  let free = 0;
  for (const { name, from_s, to_s } of panel.stages) {
    const from = Math.max(x(from_s), LEFT), to = Math.min(x(to_s), RIGHT), long = name.length * LETTER;
    if (to < LEFT || from > RIGHT) { continue; }
    const width = Math.max(to - from, 1), band = node("g", { class: "band " + colours[name] });
    band.append(node("title", {}, name + ": " + time(to_s - from_s)),
      node("rect", { class: "head", x: from, y: TOP - 24, width, height: 22 }),
      node("rect", { class: "body", x: from, y: TOP, width, height: BOTTOM - TOP }));
    if (long < width - 8) {
      band.append(node("text", { x: from + width / 2, y: TOP - 9, "text-anchor": "middle" }, name));
    } else if (to - from >= 1 && from >= free && from + long < RIGHT) {
      free = from + long;
      band.append(node("text", { class: "above", x: from, y: TOP - 30 }, name));
    }
    shapes.push(band);
  }
  return shapes;
}
function steps() {
  const shapes = [];
  let last = -Infinity;
  for (const [at_s, stage, done] of marks) {
    const at = x(at_s);
    if (!done || at < LEFT || at > RIGHT || at - last < NEAREST) { continue; }
    last = at;
    shapes.push(node("line", { class: "step " + colours[stage], x1: at, x2: at, y1: BOTTOM - 9, y2: BOTTOM }));
  }
  return shapes;
}
function draw(panel) {
  const high = scale(panel), y = count => BOTTOM - (BOTTOM - TOP) * count / high;
  const body = panel.at_s.length ? (stacked(panel) ? areas : lines)(panel, y) : [];
  // What lies outside of the view is covered.
  const covers = [[0, LEFT], [RIGHT, WIDTH - RIGHT]].map(([from, width]) =>
    node("rect", { class: "cover", x: from, y: 0, width, height: HEIGHT }));
  panel.pointer = node("line", { class: "pointer", y1: TOP, y2: BOTTOM, visibility: "hidden" });
  panel.choice = node("rect", { class: "choice", y: TOP, height: BOTTOM - TOP, visibility: "hidden" });
  const [levels, texts] = axes(panel, high, y);
  panel.svg.replaceChildren(...stages(panel), ...levels, ...steps(), ...body, ...covers, ...texts,
    ...(stacked(panel) ? [] : peaks(panel, y)), panel.choice, panel.pointer);
}

// ---- the pointer

function at(panel, event) {
  const box = panel.svg.getBoundingClientRect(), place = (event.clientX - box.left) * WIDTH / box.width;
  return view[0] + Math.min(Math.max((place - LEFT) / (RIGHT - LEFT), 0), 1) * (view[1] - view[0]);
}
function stageText(panel, at_s) {
  const stage = panel.stages.filter(one => one.from_s <= at_s && at_s <= one.to_s).pop();
  if (!stage) { return ""; }
  const [, name, done, total] = marks[above(marks.map(mark => mark[0]), at_s) - 1] || [];
  const step = total ? ", step " + Math.min(done + 1, total) + " of " + total : done ? ", " + done + " done" : "";
  return ", " + stage.name + (name === stage.name ? step : "");
}
function show(panel, event) {
  const at_s = at(panel, event), moment = Math.max(above(panel.at_s, at_s) - 1, 0);
  if (!panel.at_s.length) { return; }
  const rows = panel.layers.filter(layer => layer.nbytes[moment] !== null).reverse()
    .map(layer => size(layer.nbytes[moment]) + "  " + layer.name);
  tip($("tip"), [at_s.toFixed(END < 10 ? 3 : 2) + " s" + stageText(panel, at_s),
    stacked(panel) && size(panel.tops[moment]) + "  together", ...rows], event.clientX, event.clientY);
  for (const { pointer } of panels) {
    for (const name of ["x1", "x2"]) { pointer.setAttribute(name, x(at_s)); }
    pointer.setAttribute("visibility", "visible");
  }
  if (drag !== null) {
    const [from, to] = [drag, at_s].sort((a, b) => a - b).map(x);
    for (const [name, value] of [["x", from], ["width", to - from], ["visibility", "visible"]]) { panel.choice.setAttribute(name, value); }
  }
}
function zoom(from, to) {
  view = [from, to];
  panels.forEach(draw);
}
function listen(panel) {
  const svg = panel.svg;
  svg.addEventListener("pointermove", event => show(panel, event));
  svg.addEventListener("pointerleave", () => {
    tip($("tip"));
    panels.forEach(one => one.pointer.setAttribute("visibility", "hidden"));
  });
  svg.addEventListener("pointerdown", event => {
    drag = at(panel, event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", event => {
    const [from, to] = [drag, at(panel, event)].sort((a, b) => a - b);
    drag = null;
    panel.choice.setAttribute("visibility", "hidden");
    if (x(to) - x(from) > 6) { zoom(from, to); }
  });
  svg.addEventListener("dblclick", () => zoom(0, END));
}
function build(panel) {
  sum(panel);
  const title = make("h2", "", panel.title), list = make("ul"), section = make("section"), limit = panel.capacity_bytes;
  if (stacked(panel)) { title.append(make("span", "peak", "  at most " + size(most(panel.tops)) + (limit ? " of " + size(limit) : ""))); }
  panel.svg = node("svg", { viewBox: "0 0 " + WIDTH + " " + HEIGHT, role: "img", "aria-label": panel.title });
  panel.layers.forEach((layer, i) => list.append(make("li", colour(panel, i), layer.name + ", at most " + size(most(layer.nbytes)))));
  section.append(title, panel.svg, list);
  $("app").append(section);
  listen(panel);
}
panels.forEach(build);
panels.forEach(draw);
})();
