// The stream of snapshots: connects, reconnects to a restarted server, pauses in a hidden tab.
// At most one stream; `state` is always one of STATES.

import { Refused, get } from './api.js'

export const STATES = ['connecting', 'live', 'reconnecting', 'refused', 'asleep']
const AGAIN_MS = 1000
const REFUSED_AGAIN_MS = 2000
const SILENCE_MS = 10000
const SLEEP_MS = 60000

export class Watching {
  /** Calls `hello`, `history`, `snapshot` with what came, and `changed` when the state did. */
  constructor(listener) {
    this.listener = listener
    this.state = 'connecting'
    this.refusal = null
    this.server = null
    this.silenceMs = SILENCE_MS
    this.source = null
    this.timer = null
    this.heardMs = performance.now()
    setInterval(() => this.check(), 2000)
    document.addEventListener('visibilitychange', () => this.seen())
    this.open()
  }

  open() {
    this.close()
    this.heardMs = performance.now()
    const source = new EventSource('/api/v1/events')
    this.source = source
    const on = (name, take) =>
      source.addEventListener(name, (event) => {
        this.heardMs = performance.now()
        take(JSON.parse(event.data))
      })
    on('hello', (hello) => this.greeted(hello))
    on('history', (history) => this.listener.history(history.points ?? history))
    on('snapshot', (snapshot) => {
      this.tell('live')
      this.listener.snapshot(snapshot)
    })
    source.addEventListener('error', () => this.failed(source))
  }

  close() {
    clearTimeout(this.timer)
    this.source?.close()
    this.source = null
  }

  greeted(hello) {
    const before = this.server
    this.server = hello.server
    this.silenceMs = Math.max(SILENCE_MS, hello.interval_s * 6000)
    const another = before && (before.pid !== hello.server.pid || before.began_s !== hello.server.began_s)
    this.listener.hello(hello, Boolean(another))
  }

  /** The browser connects again by itself, unless it was refused: then the reason is asked for. */
  async failed(source) {
    if (source !== this.source) return
    if (this.state !== 'refused') this.tell(this.server ? 'reconnecting' : 'connecting')
    if (source.readyState !== EventSource.CLOSED) return
    let wait = AGAIN_MS
    try {
      await get('/api/v1/snapshot')
    } catch (refusal) {
      if (refusal instanceof Refused && (refusal.status === 401 || refusal.status === 403)) {
        wait = REFUSED_AGAIN_MS
        if (source === this.source) this.tell('refused', refusal)
      }
    }
    if (source === this.source) this.timer = setTimeout(() => this.open(), wait)
  }

  /** A stream may die without a word: a laptop that slept, a cable. */
  check() {
    const silent = performance.now() - this.heardMs > this.silenceMs
    if (this.source?.readyState !== EventSource.CLOSED && this.source && silent) {
      this.tell('reconnecting')
      this.open()
    }
  }

  /** A browser has few connections for one server; a tab in the background gives its own back. */
  seen() {
    clearTimeout(this.sleep)
    if (document.hidden) {
      this.sleep = setTimeout(() => {
        this.close()
        this.tell('asleep')
      }, SLEEP_MS)
    } else if (!this.source) this.open()
  }

  tell(state, refusal = null) {
    const changed = state !== this.state || refusal?.what !== this.refusal?.what
    this.state = state
    this.refusal = refusal
    if (changed) this.listener.changed()
  }
}
