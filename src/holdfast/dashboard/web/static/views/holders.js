// The largest blocks in use of one process: filter and sort.
// Loaded when the view opens, another process is selected or the button is pressed: it takes time.

import { Outcome } from '../actions.js'
import { bytes } from '../amounts.js'
import { get, ofProcess } from '../api.js'
import { Table, button, filter, hide, make, write } from '../elements.js'
import { ProcessChoice } from './choosing.js'
import { empty } from './overview.js'

const MOST = 200

export class HoldersView {
  constructor(app) {
    this.app = app
    this.rows = []
    this.asked = null
    this.choice = new ProcessChoice(app, () => this.refresh())
    this.search = filter(app.say('filterHolders'), () => this.show())
    this.button = button(app.say('refresh'), () => this.refresh(), { class: 'main' })
    this.sum = make('span', { class: 'soft' })
    this.outcome = new Outcome(app)
    this.table = new Table(
      [
        { name: app.say('bytes'), kind: 'number', text: (row) => bytes(row.nbytes), by: (row) => row.nbytes },
        { name: app.say('device'), kind: 'text', text: (row) => row.device, by: (row) => row.device },
        { name: app.say('tag'), kind: 'text', text: (row) => row.tag || '–', by: (row) => row.tag },
        { name: app.say('location'), kind: 'long', text: (row) => row.location, by: (row) => row.location }
      ],
      { label: app.say('holders'), by: 0 }
    )
    this.none = empty(app, 'noProcess', 'noProcessHint')
    this.nothing = make('p', { class: 'soft', hidden: true }, app.say('noHolders'))
    const tools = make('div', { class: 'row' }, this.choice.element, this.button, this.search, this.sum)
    this.scroll = make('div', { class: 'scroll' }, this.table.element)
    this.card = make('section', { class: 'card' }, tools, this.outcome.element, this.nothing, this.scroll)
    this.element = make('div', {}, this.none, this.card)
  }

  enter() {
    this.asked = null
  }

  update() {
    const { processes } = this.app
    hide(this.none, processes.length > 0 || this.app.snapshot === null)
    hide(this.card, processes.length === 0)
    this.choice.update(processes)
    if (this.choice.pid !== null && this.asked !== this.choice.pid) this.refresh()
  }

  async refresh() {
    const { pid } = this.choice
    this.asked = pid
    if (pid === null) return
    this.button.disabled = true
    const found = await this.outcome.attempt(() => get(`${ofProcess(pid, 'holders')}?most=${MOST}`), () => '')
    this.button.disabled = false
    if (this.asked !== pid) return
    this.rows = found?.holders ?? []
    this.show()
  }

  show() {
    const text = this.search.value.trim().toLowerCase()
    const shown = this.rows.filter((row) => `${row.device} ${row.tag} ${row.location}`.toLowerCase().includes(text))
    const total = shown.reduce((sum, row) => sum + row.nbytes, 0)
    write(this.sum, this.app.say('holdersShown', { count: shown.length, amount: bytes(total) }))
    hide(this.nothing, this.rows.length > 0)
    hide(this.scroll, this.rows.length === 0)
    this.table.update(shown)
  }
}
