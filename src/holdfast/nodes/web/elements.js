// Small parts that the panel is built of. Texts are set as text, never as markup.

/** An element: `attributes` are set as attributes, children are elements or texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (value !== null && value !== undefined) element.setAttribute(name, value)
  }
  element.append(...children)
  return element
}

/** Set a text only where it has changed, so that a reader's selection stays. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text
}

/** As many children as there are values: `create()` makes one, `update(child, value)` fills it. */
export function repeat(parent, values, create, update) {
  while (parent.children.length > values.length) parent.lastElementChild.remove()
  values.forEach((value, at) => {
    if (!parent.children[at]) parent.append(create())
    update(parent.children[at], value)
  })
}

/** A bar with parts of a whole, one behind the other. */
export class Bar {
  constructor(...kinds) {
    this.name = make('span', { class: 'hf-bar-name' })
    this.value = make('span', { class: 'hf-bar-value' })
    this.parts = kinds.map((kind) => make('span', { class: `hf-part hf-${kind}` }))
    this.track = make('div', { class: 'hf-track', role: 'meter', 'aria-valuemin': 0 }, ...this.parts)
    this.note = make('div', { class: 'hf-note' })
    const head = make('div', { class: 'hf-bar-head' }, this.name, this.value)
    this.element = make('div', { class: 'hf-bar' }, head, this.track, this.note)
  }

  /** `shares` are the ends of the parts, from 0 to 1. */
  set({ name, value, shares, note = '', tip = null, most = 0, now = 0 }) {
    write(this.name, name)
    write(this.value, value)
    write(this.note, note)
    this.note.hidden = !note
    if (tip) this.element.title = tip
    let before = 0
    this.parts.forEach((part, at) => {
      const end = Math.max(before, shares[at] ?? 0)
      part.style.width = `${((end - before) * 100).toFixed(2)}%`
      before = end
    })
    this.track.classList.toggle('hf-full', before > 0.95)
    this.track.setAttribute('aria-label', name)
    this.track.setAttribute('aria-valuetext', note ? `${value}, ${note}` : value)
    this.track.setAttribute('aria-valuemax', Math.max(most, 1))
    this.track.setAttribute('aria-valuenow', Math.min(now, Math.max(most, 1)))
  }
}

const SVG = 'http://www.w3.org/2000/svg'

/** A line over time; its gaps are times nobody looked. */
export class Sparkline {
  constructor() {
    this.element = document.createElementNS(SVG, 'svg')
    this.element.setAttribute('class', 'hf-spark')
    this.element.setAttribute('viewBox', '0 0 100 30')
    this.element.setAttribute('preserveAspectRatio', 'none')
    this.element.setAttribute('role', 'img')
    this.area = this.path('hf-spark-area')
    this.line = this.path('hf-spark-line')
  }

  path(kind) {
    const path = document.createElementNS(SVG, 'path')
    path.setAttribute('class', kind)
    this.element.append(path)
    return path
  }

  /** `points` are [seconds, value]; `from` and `to` in seconds, `top` is the highest value. */
  set(points, from, to, top, label) {
    const pieces = split(points.filter((point) => point[0] >= from))
    const at = ([s, v]) =>
      `${((100 * (s - from)) / (to - from)).toFixed(2)} ${(29 - (27 * v) / (top || 1)).toFixed(2)}`
    const lines = pieces.map((piece) => `M${piece.map(at).join('L')}`)
    this.line.setAttribute('d', lines.join(''))
    const x = (point) => ((100 * (point[0] - from)) / (to - from)).toFixed(2)
    const areas = pieces.map((piece, n) => `${lines[n]}L${x(piece.at(-1))} 30L${x(piece[0])} 30Z`)
    this.area.setAttribute('d', areas.join(''))
    this.element.setAttribute('aria-label', label)
  }
}

/** Points without long gaps; a single point is drawn as a short line. */
function split(points, gap_s = 15) {
  const pieces = []
  let last = null
  for (const point of points) {
    if (last === null || point[0] - last > gap_s) pieces.push([])
    pieces.at(-1).push(point)
    last = point[0]
  }
  return pieces.map((piece) => (piece.length > 1 ? piece : [piece[0], [piece[0][0] + 0.5, piece[0][1]]]))
}
