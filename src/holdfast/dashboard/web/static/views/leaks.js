// Leaked blocks and their referrers.
// Searched only when the button is pressed: it stops the process for a moment.

import { Outcome } from '../actions.js'
import { bytes, clock, seconds } from '../amounts.js'
import { ofProcess, post } from '../api.js'
import { Table, button, hide, make, put, write } from '../elements.js'
import { ProcessChoice } from './choosing.js'
import { empty } from './overview.js'

const heldBy = (row) => row.referrers.join('\n') || '–'

export class LeaksView {
  constructor(app) {
    this.app = app
    this.found = new Map()
    this.choice = new ProcessChoice(app, () => app.changed())
    this.debugging = button('', () => this.turn(), { role: 'switch', class: 'toggle' })
    this.button = button(app.say('lookForLeaks'), () => this.look(), { class: 'main' })
    this.known = make('span', { class: 'soft' })
    this.outcome = new Outcome(app)
    this.hint = make('p', { class: 'soft' })
    this.table = new Table(
      [
        { name: app.say('bytes'), kind: 'number', text: (row) => bytes(row.nbytes), by: (row) => row.nbytes },
        { name: app.say('age'), kind: 'number', text: (row) => seconds(row.age_s), by: (row) => row.age_s },
        { name: app.say('device'), kind: 'text', text: (row) => row.device, by: (row) => row.device },
        { name: app.say('tag'), kind: 'text', text: (row) => row.tag || '–', by: (row) => row.tag },
        { name: app.say('location'), kind: 'long', text: (row) => row.location, by: (row) => row.location },
        { name: app.say('heldBy'), kind: 'long lines', text: heldBy, by: heldBy }
      ],
      { label: app.say('leaks'), by: 0 }
    )
    this.none = empty(app, 'noProcess', 'noProcessHint')
    const tools = make('div', { class: 'row' }, this.choice.element, this.debugging, this.button, this.known)
    this.scroll = make('div', { class: 'scroll' }, this.table.element)
    this.card = make('section', { class: 'card' }, tools, this.outcome.element, this.hint, this.scroll)
    this.element = make('div', {}, this.none, this.card)
  }

  get process() {
    return this.app.processes.find((one) => one.pid === this.choice.pid) ?? null
  }

  update() {
    const { app } = this
    hide(this.none, app.processes.length > 0 || app.snapshot === null)
    hide(this.card, app.processes.length === 0)
    this.choice.update(app.processes)
    for (const pid of this.found.keys()) {
      if (!app.processes.some((one) => one.pid === pid)) this.found.delete(pid)
    }
    if (this.process) this.show(this.process)
  }

  show({ pid, leaks }) {
    const { app } = this
    write(this.debugging, app.say(leaks.debugging ? 'debuggingOn' : 'debuggingOff'))
    put(this.debugging, 'aria-checked', leaks.debugging)
    if (this.button.disabled === leaks.debugging) this.button.disabled = !leaks.debugging
    write(this.known, this.words(leaks))
    const rows = this.found.get(pid) ?? null
    write(this.hint, rows?.length ? '' : app.say(!leaks.debugging ? 'debuggingHint' : rows ? 'noLeaks' : 'lookHint'))
    hide(this.hint, Boolean(rows?.length))
    hide(this.scroll, !rows?.length)
    if (rows !== this.table.rows) this.table.update(rows ?? [])
  }

  words(leaks) {
    if (leaks.checked_s === null) return ''
    const values = { time: clock(leaks.checked_s), count: leaks.count, amount: bytes(leaks.total_bytes) }
    return this.app.say('lookedAt', values)
  }

  turn() {
    const { process } = this
    if (!process) return
    const on = !process.leaks.debugging
    const say = () => this.app.say(on ? 'turnedOn' : 'turnedOff')
    this.outcome.attempt(() => post(ofProcess(process.pid, 'debugging'), { on }), say)
  }

  async look() {
    const { pid } = this.choice
    const words = ({ leaks }) => {
      const total = leaks.reduce((sum, one) => sum + one.nbytes, 0)
      return this.app.say('leaksFound', { count: leaks.length, amount: bytes(total) })
    }
    const found = await this.outcome.attempt(() => post(ofProcess(pid, 'leaks')), words)
    if (found) this.found.set(pid, found.leaks)
    this.app.changed()
  }
}
