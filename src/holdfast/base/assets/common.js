
"use strict";
// What the scripts of every page share.
window.holdfast ??= (() => {
  function size(count) {
    const units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let i = 0;
    while (count >= 999.5 && i < 5) { count /= 1000; i += 1; }
    return count.toFixed(i && count < 99.95 ? 1 : 0) + " " + units[i];
  }
  function make(tag, name, text) {
    const node = document.createElement(tag);
    if (name) { node.className = name; }
    if (text !== undefined) { node.textContent = text; }
    return node;
  }
  async function inflate(text) {
    const raw = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text)
      : Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer();
  }
  // About `count` round numbers between the two, and their distance.
  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * .999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i += 1) { found.push(i * step); }
    return [found, step];
  }
  // The first of sorted numbers that is larger.
  function above(numbers, value) {
    let low = 0, high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] > value) { high = middle; } else { low = middle + 1; }
    }
    return low;
  }
  // Show lines beside the pointer, the first one bold; hide without lines.
  function tip(node, lines, x, y) {
    node.hidden = !lines;
    if (!lines) { return; }
    const [head, ...rest] = lines.filter(Boolean);
    node.replaceChildren(make("b", "", head), ...rest.map(line => make("div", "", line)));
    const wide = node.offsetWidth, high = node.offsetHeight;
    node.style.left = Math.max(4, x + 16 + wide > innerWidth ? x - wide - 14 : x + 16) + "px";
    node.style.top = Math.max(4, y + 18 + high > innerHeight ? y - high - 12 : y + 18) + "px";
  }
  return { size, make, inflate, ticks, above, tip };
})();
