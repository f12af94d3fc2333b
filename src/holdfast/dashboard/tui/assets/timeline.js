
"use strict";
// Stacked memory over time. All panels share one axis of time: drag across one to zoom, double
// click to see all again.
const data = JSON.parse(document.getElementById("data").textContent);
const app = document.getElementById("app"), tip = document.getElementById("tip");
const WIDTH = 1120, LEFT = 78, RIGHT = 1104, TOP = 26, BOTTOM = 236, HEIGHT = 262;
let view = [0, Math.max(data.duration_s, 0.001)];
let drag = null;

function node(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) { made.setAttribute(key, value); }
  if (text !== undefined) { made.textContent = text; }
  return made;
}
function size(count) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
  return count.toFixed(at && count < 99.95 ? 1 : 0) + " " + units[at];
}
function ticks(from, to, count) {
  const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(from / step - 1e-9); at * step <= to * (1 + 1e-9); at += 1) {
    found.push(at * step);
  }
  return found;
}
function colour(panel, at) {
  return panel.layers[at].name === "others" ? "rest" : "c" + at % 8;
}
function x(at_s) { return LEFT + (RIGHT - LEFT) * (at_s - view[0]) / (view[1] - view[0]); }

// The sums below each layer, once for each panel: sums[layer][moment].
for (const panel of data.panels) {
  panel.sums = [panel.at_s.map(() => 0)];
  for (const layer of panel.layers) {
    const below = panel.sums[panel.sums.length - 1];
    panel.sums.push(below.map((sum, at) => sum + (layer.nbytes[at] || 0)));
  }
  panel.tops = panel.sums[panel.sums.length - 1];
}
function seen(panel) {
  // The moments in view and one on each side.
  let from = panel.at_s.findIndex(at => at >= view[0]);
  let to = panel.at_s.findIndex(at => at > view[1]);
  if (from < 0) { from = panel.at_s.length; }
  if (to < 0) { to = panel.at_s.length - 1; }
  return [Math.max(from - 1, 0), to];
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
function scale(panel) {
  const [from, to] = seen(panel);
  let most = 1;
  for (let i = from; i <= to; i += 1) { most = Math.max(most, panel.tops[i]); }
  const limit = panel.capacity_bytes;
  return limit && limit < 1.6 * most ? Math.max(limit, most) * 1.06 : most * 1.12;
}
function axes(panel, most, y) {
  const shapes = [];
  const factor = 1000 ** Math.floor(Math.log10(Math.max(most, 1)) / 3);
  for (const value of ticks(0, most / factor, 4)) {
    const at = y(value * factor);
    shapes.push(node("line", { class: "grid", x1: LEFT, x2: RIGHT, y1: at, y2: at }));
    shapes.push(node("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" },
      size(value * factor)));
  }
  for (const value of ticks(view[0], view[1], 8)) {
    shapes.push(node("text", { x: x(value), y: BOTTOM + 18, "text-anchor": "middle" },
      Number(value.toPrecision(6)) + " s"));
  }
  if (panel.capacity_bytes && panel.capacity_bytes <= most) {
    const at = y(panel.capacity_bytes);
    shapes.push(node("line", { class: "limit", x1: LEFT, x2: RIGHT, y1: at, y2: at }));
  }
  return shapes;
}
function stages(panel) {
  const shapes = [];
  for (const stage of panel.stages) {
    const from = Math.max(x(stage.from_s), LEFT), to = Math.min(x(stage.to_s), RIGHT);
    if (to < LEFT || from > RIGHT) { continue; }
    const width = Math.max(to - from, 2);
    shapes.push(node("rect", { class: "stage", x: from, width, y: 4, height: BOTTOM - 4 }));
    if (width > 8 * stage.name.length) {
      shapes.push(node("text", { class: "stage-name", x: from + 5, y: 18 }, stage.name));
    }
  }
  return shapes;
}
function draw(panel) {
  const most = scale(panel), y = count => BOTTOM - (BOTTOM - TOP) * count / most;
  const clip = node("clipPath", { id: panel.clip });
  clip.append(node("rect", { x: LEFT, y: 0, width: RIGHT - LEFT, height: HEIGHT }));
  const body = node("g", { "clip-path": "url(#" + panel.clip + ")" });
  if (panel.at_s.length) { body.append(...areas(panel, y)); }
  panel.pointer = node("line", { class: "pointer", y1: TOP, y2: BOTTOM, visibility: "hidden" });
  panel.choice = node("rect", { class: "choice", y: TOP, height: BOTTOM - TOP,
    visibility: "hidden" });
  panel.svg.replaceChildren(clip, ...stages(panel), ...axes(panel, most, y), body, panel.choice,
    panel.pointer);
}
function at(panel, event) {
  const box = panel.svg.getBoundingClientRect();
  const place = (event.clientX - box.left) * WIDTH / box.width;
  const part = Math.min(Math.max((place - LEFT) / (RIGHT - LEFT), 0), 1);
  return view[0] + part * (view[1] - view[0]);
}
function show(panel, event) {
  const at_s = at(panel, event);
  const next = panel.at_s.findIndex(one => one > at_s);
  const moment = next < 0 ? panel.at_s.length - 1 : Math.max(next - 1, 0);
  if (moment < 0) { return; }
  const lines = panel.layers.map((layer, i) => [layer.name, layer.nbytes[moment], i])
    .filter(row => row[1] !== null).reverse().map(row => size(row[1]) + "  " + row[0]);
  const stage = panel.stages.find(one => one.from_s <= at_s && at_s <= one.to_s);
  lines.unshift(at_s.toFixed(2) + " s" + (stage ? ", " + stage.name : ""),
    size(panel.tops[moment]) + "  together");
  tip.textContent = lines.join("\n");
  tip.hidden = false;
  const room = window.innerWidth - tip.offsetWidth - 24;
  tip.style.left = event.clientX + (event.clientX > room ? -tip.offsetWidth - 14 : 14) + "px";
  tip.style.top = event.clientY + 14 + "px";
  for (const other of data.panels) {
    other.pointer.setAttribute("x1", x(at_s));
    other.pointer.setAttribute("x2", x(at_s));
    other.pointer.setAttribute("visibility", "visible");
  }
  if (drag !== null) {
    const from = x(Math.min(drag, at_s)), to = x(Math.max(drag, at_s));
    panel.choice.setAttribute("x", from);
    panel.choice.setAttribute("width", to - from);
    panel.choice.setAttribute("visibility", "visible");
  }
}
function hide() {
  tip.hidden = true;
  for (const panel of data.panels) { panel.pointer.setAttribute("visibility", "hidden"); }
}
function zoom(from, to) {
  view = [from, to];
  data.panels.forEach(draw);
}
function listen(panel) {
  const svg = panel.svg;
  svg.addEventListener("pointermove", event => show(panel, event));
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointerdown", event => {
    drag = at(panel, event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", event => {
    const from = Math.min(drag, at(panel, event)), to = Math.max(drag, at(panel, event));
    drag = null;
    panel.choice.setAttribute("visibility", "hidden");
    if (x(to) - x(from) > 6) { zoom(from, to); }
  });
  svg.addEventListener("dblclick", () => zoom(0, Math.max(data.duration_s, 0.001)));
}
function build(panel, number) {
  const section = document.createElement("section"), title = document.createElement("h2");
  title.textContent = panel.title;
  const peak = document.createElement("span");
  peak.className = "peak";
  const most = panel.tops.reduce((high, one) => Math.max(high, one), 0);
  peak.textContent = "  at most " + size(most) +
    (panel.capacity_bytes ? " of " + size(panel.capacity_bytes) : "");
  title.append(peak);
  panel.clip = "clip-" + number;
  panel.svg = node("svg", { viewBox: "0 0 " + WIDTH + " " + HEIGHT, role: "img",
    "aria-label": panel.title });
  const list = document.createElement("ul");
  panel.layers.forEach((layer, i) => {
    const item = document.createElement("li");
    item.className = colour(panel, i);
    const high = layer.nbytes.reduce((top, one) => Math.max(top, one || 0), 0);
    item.textContent = layer.name + ", at most " + size(high);
    list.append(item);
  });
  section.append(title, panel.svg, list);
  app.append(section);
  listen(panel);
}
document.getElementById("about").textContent = new Date(data.began_s * 1000).toLocaleString() +
  ", " + data.duration_s.toFixed(1) + " s. Drag across a picture to zoom, double click to see all.";
data.panels.forEach(build);
data.panels.forEach(draw);
document.getElementById("message").hidden = true;
app.hidden = false;
