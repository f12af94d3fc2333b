// Asks the server for memory, again and again, while somebody wants to know.
//
// Covers: when to ask, what is kept of the last minutes, a server that goes away and comes back.
// Leaves to others: showing it.  Promise: one request at a time; none while nobody wants one.

const AGAIN_MS = 3000
const PATIENCE_MS = 10000
export const KEPT_S = 300

export class Watching {
  /**
   * `wanted` holds the reasons to ask ("panel", "run"); a panel that is not seen is none.
   * `pace()` gives the milliseconds between two answers.
   */
  constructor(api, pace) {
    this.api = api
    this.pace = pace
    this.wanted = new Set()
    this.listeners = new Set()
    this.timer = null
    this.asking = null
    this.last = null
    this.connected = null
    this.points = []
    document.addEventListener('visibilitychange', () => this.schedule(0))
  }

  /** Call `listener(this)` after every answer, and when there is none. */
  listen(listener) {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  want(reason, wanted) {
    const asked = this.active
    if (wanted) this.wanted.add(reason)
    else this.wanted.delete(reason)
    if (!this.active) this.cancel()
    else if (!asked) this.schedule(0)
  }

  get active() {
    return this.wanted.has('run') || (this.wanted.has('panel') && !document.hidden)
  }

  /** Ask now; the answer, or null where there is none. */
  ask() {
    this.asking ??= this.request().finally(() => {
      this.asking = null
      this.schedule(this.connected ? this.pace() : AGAIN_MS)
    })
    return this.asking
  }

  schedule(milliseconds) {
    this.cancel()
    if (this.active) this.timer = setTimeout(() => this.ask(), milliseconds)
  }

  cancel() {
    clearTimeout(this.timer)
    this.timer = null
  }

  async request() {
    try {
      const since = this.last ? `?since=${this.last.at_s}` : ''
      const limit = AbortSignal.timeout(PATIENCE_MS)
      const answer = await this.api.fetchApi(`/holdfast/live${since}`, { signal: limit })
      if (!answer.ok) throw new Error(`status ${answer.status}`)
      this.take(await answer.json())
    } catch {
      this.connected = false // a server that is being restarted; it is asked again
    }
    for (const listener of this.listeners) listener(this)
    return this.connected ? this.last : null
  }

  take(snapshot) {
    if (this.last && this.last.process !== snapshot.process) this.points = []
    this.points.push(...snapshot.recent)
    const oldest = snapshot.at_s - KEPT_S
    let first = 0
    while (first < this.points.length && this.points[first].at_s < oldest) first += 1
    this.points.splice(0, first)
    this.last = snapshot
    this.connected = true
  }
}
