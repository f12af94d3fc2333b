// Memory over time as columns of numbers, at most `capacity` points and MOST_SERIES columns.
// Merging two points keeps the maximum, so that no peak gets lost.

import { COLOURS } from './colours.js'

export const CAPACITY = 2400
const MOST_SERIES = 40
const CLOCK_S = 60
const BRIDGE_S = 12 // a process that did not answer is asked again before that
export const REST = 'rest'

export class Timeline {
  constructor(capacity = CAPACITY) {
    this.capacity = capacity
    this.times = new Float64Array(capacity)
    this.totals = new Float64Array(capacity)
    this.series = new Map()
    this.length = 0
  }

  clear() {
    this.length = 0
    this.series.clear()
  }

  get first() {
    return this.length ? this.times[0] : null
  }

  get last() {
    return this.length ? this.times[this.length - 1] : null
  }

  /** `values` are [key, label, bytes]; points come in the order of time. */
  push(atS, values) {
    if (this.length && atS < this.last - CLOCK_S) this.clear() // the clock was set back
    if (this.length && atS < this.last) return
    if (this.length && atS === this.last) this.length -= 1
    if (this.length === this.capacity) this.thin()
    const at = this.length
    this.length += 1
    this.times[at] = atS
    let total = 0
    for (const one of this.series.values()) one.values[at] = NaN
    for (const [key, label, count] of values) {
      const one = this.column(key, label, at)
      if (Number.isNaN(one.values[at])) this.bridge(one.values, at, count)
      one.values[at] = (one.values[at] || 0) + count
      total += count
    }
    this.totals[at] = total
  }

  /** A process that is busy may miss some looks: what it had between is not nothing. */
  bridge(values, at, count) {
    let from = at - 1
    while (from >= 0 && Number.isNaN(values[from]) && this.times[at] - this.times[from] < BRIDGE_S) from -= 1
    if (from < 0 || from === at - 1 || Number.isNaN(values[from])) return
    const length = this.times[at] - this.times[from]
    if (length > BRIDGE_S) return
    for (let between = from + 1; between < at; between += 1) {
      const part = (this.times[between] - this.times[from]) / length
      values[between] = values[from] + part * (count - values[from])
      this.totals[between] += values[between]
    }
  }

  column(key, label, before) {
    const found = this.series.get(key)
    if (found) {
      found.label = label
      return found
    }
    if (this.series.size >= MOST_SERIES) return this.series.get(REST) ?? this.add(REST, '…', before)
    return this.add(key, label, before)
  }

  add(key, label, before) {
    const values = new Float32Array(this.capacity)
    values.fill(NaN, 0, before + 1)
    const made = { key, label, colour: this.freeColour(), values }
    this.series.set(key, made)
    return made
  }

  freeColour() {
    const taken = new Set([...this.series.values()].map((one) => one.colour))
    return COLOURS.find((colour) => !taken.has(colour)) ?? COLOURS[this.series.size % COLOURS.length]
  }

  /** Of the older half, two points become one: that with more memory. */
  thin() {
    const half = this.capacity >> 1
    let to = 0
    for (let from = 0; from < half; from += 2) {
      this.copy(this.totals[from] >= this.totals[from + 1] ? from : from + 1, to++)
    }
    for (let from = half; from < this.length; from += 1) this.copy(from, to++)
    this.length = to
    for (const [key, one] of this.series) {
      if (one.values.subarray(0, to).every(Number.isNaN)) this.series.delete(key)
    }
  }

  copy(from, to) {
    if (from === to) return
    this.times[to] = this.times[from]
    this.totals[to] = this.totals[from]
    for (const one of this.series.values()) one.values[to] = one.values[from]
  }

  /** The number of the last point at or before a time, or -1. */
  before(atS) {
    let low = 0
    let high = this.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (this.times[middle] <= atS) low = middle + 1
      else high = middle
    }
    return low - 1
  }

  /** The number of the point that is closest to a time, or -1. */
  nearest(atS) {
    const at = this.before(atS)
    if (at < 0) return this.length ? 0 : -1
    if (at + 1 < this.length && this.times[at + 1] - atS < atS - this.times[at]) return at + 1
    return at
  }
}
