// Memory over time, with zoom.
// Everything works with the pointer and with the keyboard.

import { bytes, clock, seconds } from '../amounts.js'
import { Chart } from '../chart.js'
import { themed } from '../colours.js'
import { button, hide, keyed, make, put, write } from '../elements.js'
import { WAYS } from '../moments.js'
import { Span } from '../span.js'
import { empty } from './overview.js'

const LENGTHS = { 60: '1 min', 600: '10 min', 3600: '1 h' }
const WHEEL = 1.25
const MOST_SHOWN = 12

export class MemoryView {
  constructor(app) {
    this.app = app
    this.way = 'process'
    this.span = new Span()
    this.pointer = null
    this.drag = null
    this.canvas = make('canvas', { id: 'timeline', tabindex: 0, role: 'img' })
    this.overlay = make('canvas', { class: 'overlay', 'aria-hidden': 'true' })
    this.pen = this.overlay.getContext('2d')
    this.chart = new Chart(this.canvas)
    this.tip = make('div', { class: 'tip', hidden: true })
    this.legend = make('ul', { class: 'legend', 'aria-label': app.say('legend') })
    this.none = empty(app, 'noProcess', 'noProcessHint')
    this.plot = make('div', { class: 'plot' }, this.canvas, this.overlay, this.tip)
    const hint = make('p', { class: 'hint' }, app.say('zoomHint'))
    const card = make('section', { class: 'card' }, this.tools(), this.none, this.plot, this.legend, hint)
    this.element = make('div', {}, card)
    this.listen()
  }

  // ---- what can be chosen

  tools() {
    const { app } = this
    this.ways = WAYS.map((way) => button(app.say(`by.${way}`), () => this.choose(way), { 'data-way': way }))
    this.lengths = Object.entries(LENGTHS).map(([length, name]) =>
      button(name, () => this.follow(Number(length)), { 'data-length': length })
    )
    this.all = button(app.say('all'), () => this.reset(), { 'data-length': 'all' })
    const zoom = [
      button('−', () => this.zoom(2), { 'aria-label': app.say('zoomOut'), 'data-zoom': 'out' }),
      button('+', () => this.zoom(0.5), { 'aria-label': app.say('zoomIn'), 'data-zoom': 'in' })
    ]
    const group = (label, ...parts) => make('div', { class: 'switch', role: 'group', 'aria-label': label }, ...parts)
    this.shown = make('span', { class: 'soft' })
    return make(
      'div',
      { class: 'row' },
      group(app.say('tellApart'), ...this.ways),
      this.shown,
      make('span', { class: 'grow' }),
      group(app.say('shownTime'), ...this.lengths, this.all),
      group(app.say('zoom'), ...zoom)
    )
  }

  choose(way) {
    this.way = way
    this.update()
  }

  follow(length) {
    this.span.follow(length)
    this.update()
  }

  reset() {
    this.span.reset()
    this.update()
  }

  zoom(factor, about = null) {
    const { first, last } = this.timeline
    if (first === null) return
    const { from, to } = this.span.range(first, last)
    this.span.zoom(factor, about ?? (this.span.following ? to : (from + to) / 2), first, last)
    this.update()
  }

  move(part) {
    const { first, last } = this.timeline
    if (first === null) return
    this.span.move(part, first, last)
    this.update()
  }

  get timeline() {
    return this.app.moments.by[this.way]
  }

  recolour() {
    this.chart.forget()
    this.inks = null
  }

  // ---- pointer and keys

  listen() {
    const { canvas } = this
    canvas.addEventListener('wheel', (event) => this.wheel(event), { passive: false })
    canvas.addEventListener('dblclick', () => this.reset())
    canvas.addEventListener('keydown', (event) => this.key(event))
    canvas.addEventListener('pointerdown', (event) => this.down(event))
    canvas.addEventListener('pointermove', (event) => this.over(event))
    canvas.addEventListener('pointerup', (event) => this.up(event))
    canvas.addEventListener('pointercancel', () => this.leave())
    canvas.addEventListener('pointerleave', () => this.leave())
  }

  wheel(event) {
    event.preventDefault()
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.move((event.deltaX || event.deltaY) / 1000)
    } else this.zoom(event.deltaY > 0 ? WHEEL : 1 / WHEEL, this.chart.time(event.offsetX))
  }

  key(event) {
    const does = {
      '+': () => this.zoom(0.5),
      '=': () => this.zoom(0.5),
      '-': () => this.zoom(2),
      ArrowLeft: () => this.move(-0.2),
      ArrowRight: () => this.move(0.2),
      Home: () => this.move(-1e6),
      End: () => this.move(1e6),
      Escape: () => this.reset(),
      ' ': () => this.app.pause(!this.app.paused)
    }[event.key]
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return
    event.preventDefault()
    does()
  }

  down(event) {
    if (event.button !== 0) return
    this.drag = { from: event.offsetX, to: event.offsetX }
    this.canvas.setPointerCapture(event.pointerId)
  }

  over(event) {
    this.pointer = { x: event.offsetX, y: event.offsetY }
    if (this.drag) this.drag.to = event.offsetX
    this.app.changed()
  }

  up() {
    const { drag } = this
    this.drag = null
    if (drag && Math.abs(drag.to - drag.from) > 6) {
      const [one, other] = [this.chart.time(drag.from), this.chart.time(drag.to)]
      this.span.choose(Math.min(one, other), Math.max(one, other), this.timeline.first, this.timeline.last)
    }
    this.app.changed()
  }

  leave() {
    this.pointer = null
    this.drag = null
    this.app.changed()
  }

  // ---- what is shown

  update() {
    const { timeline } = this
    hide(this.none, timeline.series.size > 0 || this.app.snapshot === null)
    for (const one of this.ways) put(one, 'aria-pressed', one.dataset.way === this.way)
    const near = this.span.following ? this.span.length : null
    for (const one of this.lengths) put(one, 'aria-pressed', near === Number(one.dataset.length))
    put(this.all, 'aria-pressed', this.span.whole)
    if (!timeline.length) return
    const range = this.range(timeline)
    this.chart.draw(timeline, range)
    put(this.canvas, 'data-from', range.from.toFixed(2))
    put(this.canvas, 'data-to', range.to.toFixed(2))
    write(this.shown, `${clock(range.from)} – ${clock(range.to)} (${seconds(range.to - range.from)})`)
    this.showPointer(timeline)
    this.showLegend(timeline, range)
  }

  /** While paused, time stands still. */
  range(timeline) {
    const { app } = this
    const last = app.paused && app.snapshot ? app.snapshot.at_s : timeline.last
    return this.span.range(timeline.first, last)
  }

  /** Values now, or where the pointer is, the most first. */
  showLegend(timeline, range) {
    const at = this.pointer ? timeline.nearest(this.chart.time(this.pointer.x)) : timeline.before(range.to)
    const rows = at < 0 ? [] : valuesAt(timeline, at)
    keyed(this.legend, rows, (row) => row.key, () => new LegendRow())
    const total = at < 0 ? '' : `${this.app.say(`by.${this.way}`)}: ${bytes(timeline.totals[at])}`
    put(this.canvas, 'aria-label', `${this.app.say('memory')}, ${total}`)
  }

  showPointer(timeline) {
    const { overlay, pen, canvas, pointer } = this
    const ratio = window.devicePixelRatio || 1
    if (overlay.width !== canvas.width) overlay.width = canvas.width
    if (overlay.height !== canvas.height) overlay.height = canvas.height
    pen.setTransform(ratio, 0, 0, ratio, 0, 0)
    pen.clearRect(0, 0, overlay.width, overlay.height)
    const at = pointer ? timeline.nearest(this.chart.time(pointer.x)) : -1
    hide(this.tip, at < 0 || this.drag !== null)
    if (at < 0) return
    this.inks ??= { line: themed('ink'), chosen: themed('accent') }
    const { box } = this.chart
    if (this.drag) this.shade(box)
    else {
      pen.fillStyle = this.inks.line
      pen.fillRect(Math.round(this.chart.x(timeline.times[at])), box.top, 1, box.height)
      this.showTip(timeline, at)
    }
  }

  shade(box) {
    const [from, to] = [this.drag.from, this.drag.to].sort((one, other) => one - other)
    this.pen.globalAlpha = 0.22
    this.pen.fillStyle = this.inks.chosen
    this.pen.fillRect(from, box.top, to - from, box.height)
    this.pen.globalAlpha = 1
  }

  showTip(timeline, at) {
    const { pointer, tip, canvas } = this
    const rows = valuesAt(timeline, at).filter((row) => row.count > 0)
    const when = clock(timeline.times[at])
    const lines = [{ key: 'at', label: when, count: timeline.totals[at], colour: null }]
    const more = rows.length - MOST_SHOWN
    lines.push(...rows.slice(0, MOST_SHOWN))
    const rest = this.app.say('more', { count: more })
    if (more > 0) lines.push({ key: 'more', label: rest, count: null, colour: null })
    keyed(tip, lines, (row) => row.key, () => new LegendRow('div'))
    const right = pointer.x > canvas.clientWidth / 2
    tip.style.left = right ? '' : `${pointer.x + 14}px`
    tip.style.right = right ? `${canvas.clientWidth - pointer.x + 14}px` : ''
    tip.style.top = '12px'
  }
}

class LegendRow {
  constructor(tag = 'li') {
    this.swatch = make('i')
    this.label = make('span')
    this.value = make('b')
    this.element = make(tag, {}, this.swatch, this.label, this.value)
  }

  update({ label, count, colour }) {
    hide(this.swatch, colour === null)
    if (colour) this.swatch.style.background = colour
    write(this.label, label)
    write(this.value, count === null ? '' : bytes(count))
  }
}

/** What each series has at a point, in the order of the layers from above. */
function valuesAt(timeline, at) {
  const rows = []
  for (const { key, label, colour, values } of timeline.series.values()) {
    if (!Number.isNaN(values[at])) rows.push({ key, label, colour, count: values[at] })
  }
  return rows.reverse()
}
