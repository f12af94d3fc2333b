// The visible part of the time: follow, zoom, move, select.
// Never shorter than SHORTEST_S and never beyond the known time.

const SHORTEST_S = 2
const LEAST_S = 10

export class Span {
  constructor() {
    this.reset()
  }

  /** Everything, up to now. */
  reset() {
    this.length = null
    this.end = null
  }

  /** The last so many seconds, and on with the present. */
  follow(length) {
    this.length = length
    this.end = null
  }

  get whole() {
    return this.length === null
  }

  get following() {
    return this.end === null
  }

  /** From and to in seconds, where points are known from `first` to `last`. */
  range(first, last) {
    const to = this.end ?? last
    const length = this.length ?? Math.max(LEAST_S, last - first)
    return { from: to - length, to }
  }

  /** `factor` above 1 shows more; the time `about` stays where it is. */
  zoom(factor, about, first, last) {
    const { from, to } = this.range(first, last)
    const most = Math.max(LEAST_S, last - first)
    const length = Math.min(most, Math.max(SHORTEST_S, (to - from) * factor))
    if (length >= most) return this.reset()
    const part = (about - from) / (to - from)
    return this.choose(about - part * length, about + (1 - part) * length, first, last)
  }

  /** Later by a part of what is shown; earlier where it is negative. */
  move(part, first, last) {
    const { from, to } = this.range(first, last)
    const by = (to - from) * part
    this.choose(from + by, to + by, first, last)
  }

  choose(from, to, first, last) {
    const length = Math.max(SHORTEST_S, to - from)
    const end = Math.max(Math.min(to, last), Math.min(first + length, last))
    this.length = length
    this.end = end >= last - length * 0.005 ? null : end
  }
}
