// Helpers to build the views: elements, lists, bars, tables.
// Texts are set as text, never as markup. Only changed elements are touched, so that a selection, the
// focus and a dragged slider stay.

/** An element: `attributes` are set as attributes, children are elements or texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (value === true) element.setAttribute(name, '')
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value)
  }
  element.append(...children)
  return element
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text
}

export function put(element, name, value) {
  const text = String(value)
  if (element.getAttribute(name) !== text) element.setAttribute(name, text)
}

export function hide(element, hidden) {
  if (element.hidden !== hidden) element.hidden = hidden
}

/** A field that filters what is below it. */
export function filter(label, change) {
  const field = make('input', { type: 'search', placeholder: label, 'aria-label': label })
  field.addEventListener('input', change)
  return field
}

export function button(text, press, attributes = {}) {
  return make('button', { type: 'button', onclick: press, ...attributes }, text)
}

const known = new WeakMap()

/**
 * One child of `parent` for each value, in their order, the same child for as long as its key is
 * there. `create(value)` gives a part with an `element` and an `update(value)`.
 */
export function keyed(parent, values, key, create) {
  const before = known.get(parent) ?? new Map()
  const now = new Map()
  values.forEach((value, at) => {
    const name = key(value, at)
    const part = before.get(name) ?? create(value)
    before.delete(name)
    now.set(name, part)
    if (parent.children[at] !== part.element) parent.insertBefore(part.element, parent.children[at] ?? null)
    part.update(value)
  })
  for (const part of before.values()) part.element.remove()
  known.set(parent, now)
}

/** A bar with parts of a whole, one behind the other, a name, a value and a note. */
export class Bar {
  constructor(...kinds) {
    this.name = make('span', { class: 'bar-name' })
    this.value = make('span', { class: 'bar-value' })
    this.parts = kinds.map((kind) => make('span', { class: `part ${kind}` }))
    this.track = make('div', { class: 'track', role: 'meter', 'aria-valuemin': 0, 'aria-valuemax': 100 })
    this.track.append(...this.parts)
    this.note = make('div', { class: 'note' })
    const head = make('div', { class: 'bar-head' }, this.name, this.value)
    this.element = make('div', { class: 'bar' }, head, this.track, this.note)
  }

  /** `shares` are the ends of the parts, from 0 to 1; `level` is "calm", "warm" or "hot"; where the
   *  whole is not `known` there is no bar. */
  update({ name, value, shares, note = '', tip = '', level = 'calm', known = true }) {
    write(this.name, name)
    write(this.value, value)
    write(this.note, note)
    hide(this.note, !note)
    if (this.element.title !== tip) this.element.title = tip
    hide(this.track, !known)
    let before = 0
    this.parts.forEach((part, at) => {
      const end = Math.max(before, shares[at] ?? 0)
      part.style.width = `${((end - before) * 100).toFixed(2)}%`
      before = end
    })
    put(this.track, 'data-level', level)
    put(this.track, 'aria-label', name)
    put(this.track, 'aria-valuetext', note ? `${value}, ${note}` : value)
    put(this.track, 'aria-valuenow', Math.round(before * 100))
  }
}

/** How full something is, in a word that has a colour. */
export function level(part) {
  return part > 0.9 ? 'hot' : part > 0.7 ? 'warm' : 'calm'
}

/** Names with values, as a list of definitions. */
export class Facts {
  constructor(kind = '') {
    this.element = make('dl', { class: `facts ${kind}` })
  }

  /** `pairs` are [name, value]; those without a value are left out. */
  update(pairs) {
    const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '')
    keyed(this.element, shown, ([name]) => name, () => {
      const term = make('dt')
      const text = make('dd')
      const fill = ([name, value]) => {
        write(term, name)
        write(text, value)
      }
      return { element: make('div', {}, term, text), update: fill }
    })
  }
}

/**
 * A table that can be sorted by each column. A column has `name`, `text(row)`, `by(row)` (what is
 * compared), and `kind` ("text", "number" or "long").
 */
export class Table {
  constructor(columns, { label, by, down = true, most = 500 }) {
    Object.assign(this, { columns, by, down, most, rows: [] })
    this.heads = columns.map((column, at) => {
      const press = () => this.sort(at)
      return make('th', { scope: 'col', class: column.kind }, button(column.name, press, { class: 'sort' }))
    })
    this.body = make('tbody')
    const head = make('thead', {}, make('tr', {}, ...this.heads))
    this.element = make('table', { 'aria-label': label }, head, this.body)
    this.mark()
  }

  sort(at) {
    this.down = this.by === at ? !this.down : this.columns[at].kind === 'number'
    this.by = at
    this.mark()
    this.update(this.rows)
  }

  mark() {
    const now = this.down ? 'descending' : 'ascending'
    this.heads.forEach((head, at) => put(head, 'aria-sort', at === this.by ? now : 'none'))
  }

  update(rows) {
    this.rows = rows
    const { by } = this.columns[this.by]
    const sign = this.down ? -1 : 1
    const ordered = [...rows].sort((one, other) => sign * compare(by(one), by(other)))
    keyed(this.body, ordered.slice(0, this.most), (_, at) => at, () => this.row())
  }

  row() {
    const cells = this.columns.map((column) => make('td', { class: column.kind, 'data-name': column.name }))
    const fill = (row) =>
      this.columns.forEach((column, at) => {
        write(cells[at], column.text(row))
        if (column.kind === 'long') cells[at].title = column.text(row)
      })
    return { element: make('tr', {}, ...cells), update: fill }
  }
}

function compare(one, other) {
  if (typeof one === 'string') return one.localeCompare(other)
  return (one ?? -Infinity) - (other ?? -Infinity) || 0
}
