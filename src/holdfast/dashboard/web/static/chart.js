// Memory over time as stacked areas on a canvas. Only reads the timeline.

import { bytes, clock } from './amounts.js'
import { themed } from './colours.js'

const GAP = 6 // so many times the usual distance of points is a time nobody looked
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400]

export class Chart {
  /** `small` leaves the axes out but for the highest value. */
  constructor(canvas, { small = false } = {}) {
    this.canvas = canvas
    this.small = small
    this.pen = canvas.getContext('2d')
    this.box = { left: 0, top: 0, width: 1, height: 1 }
    this.from = 0
    this.to = 1
    this.top = 1
  }

  /** Forget the theme's colours: they are asked for again. */
  forget() {
    this.inks = null
  }

  draw(timeline, { from, to }) {
    this.measure()
    Object.assign(this, { from, to })
    const first = Math.max(0, timeline.before(from))
    const last = Math.min(timeline.length - 1, timeline.before(to) + 1)
    this.top = scale(highest(timeline, first, last))
    this.inks ??= { ink: themed('soft'), line: themed('line') }
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height)
    if (!this.small) this.axes()
    this.pen.save()
    this.pen.beginPath()
    this.pen.rect(this.box.left, 0, this.box.width, this.box.top + this.box.height)
    this.pen.clip()
    for (const [begin, end] of pieces(timeline, first, last)) this.areas(timeline, begin, end)
    this.pen.restore()
  }

  measure() {
    const ratio = window.devicePixelRatio || 1
    const { clientWidth: width, clientHeight: height } = this.canvas
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)]
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide
      this.canvas.height = high
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0)
    this.box = this.small
      ? { left: 0, top: 2, width, height: height - 2 }
      : { left: 66, top: 10, width: Math.max(1, width - 76), height: Math.max(1, height - 36) }
  }

  x(atS) {
    return this.box.left + (this.box.width * (atS - this.from)) / (this.to - this.from || 1)
  }

  y(count) {
    return this.box.top + this.box.height * (1 - count / this.top)
  }

  /** The time under a place on the canvas. */
  time(x) {
    return this.from + ((this.to - this.from) * (x - this.box.left)) / this.box.width
  }

  axes() {
    const { pen, box } = this
    pen.font = '12px system-ui, sans-serif'
    pen.lineWidth = 1
    pen.strokeStyle = this.inks.line
    pen.fillStyle = this.inks.ink
    pen.textAlign = 'right'
    pen.textBaseline = 'middle'
    for (let part = 0; part <= 4; part += 1) {
      const y = Math.round(this.y((this.top * part) / 4)) + 0.5
      this.stroke(box.left, y, box.left + box.width, y)
      pen.fillText(bytes((this.top * part) / 4), box.left - 8, y)
    }
    this.clockMarks()
  }

  clockMarks() {
    const { pen, box } = this
    const room = Math.max(2, Math.floor(box.width / 92))
    const wanted = (this.to - this.from) / room
    const step = STEPS_S.find((one) => one >= wanted) ?? 86400
    pen.textAlign = 'center'
    pen.textBaseline = 'top'
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5
      this.stroke(x, box.top + box.height, x, box.top + box.height + 4)
      if (x > box.left + 20 && x < box.left + box.width - 18) {
        pen.fillText(clock(at, step < 60), x, box.top + box.height + 8)
      }
    }
  }

  stroke(x, y, toX, toY) {
    this.pen.beginPath()
    this.pen.moveTo(x, y)
    this.pen.lineTo(toX, toY)
    this.pen.stroke()
  }

  areas(timeline, begin, end) {
    const floor = new Float64Array(end - begin + 1)
    for (const { values, colour } of timeline.series.values()) {
      const { pen } = this
      pen.beginPath()
      for (let at = begin; at <= end; at += 1) {
        pen.lineTo(this.x(timeline.times[at]), this.y(floor[at - begin] + (values[at] || 0)))
      }
      for (let at = end; at >= begin; at -= 1) {
        pen.lineTo(this.x(timeline.times[at]), this.y(floor[at - begin]))
        floor[at - begin] += values[at] || 0
      }
      pen.fillStyle = colour
      pen.globalAlpha = 0.82
      pen.fill()
      pen.globalAlpha = 1
    }
  }
}

function highest(timeline, first, last) {
  let most = 0
  for (let at = first; at <= last; at += 1) most = Math.max(most, timeline.totals[at])
  return most
}

/** A round number above the highest, so that quarters of it are round too. */
function scale(most) {
  if (!(most > 0)) return 1000
  const unit = 10 ** Math.floor(Math.log10(most))
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].map((one) => one * unit).find((one) => one >= most * 1.04) ?? unit * 12
}

/** Points without the times that nobody looked. */
function* pieces(timeline, first, last) {
  const { times } = timeline
  let begin = first
  for (let at = first; at < last; at += 1) {
    const before = at > first ? times[at] - times[at - 1] : 0
    const after = at + 2 <= last ? times[at + 2] - times[at + 1] : 0
    if (times[at + 1] - times[at] > GAP * Math.max(before, after, 1.5)) {
      if (at > begin) yield [begin, at]
      begin = at + 1
    }
  }
  if (last > begin) yield [begin, last]
}
