// The history of runs, with pictures. A run keeps its element, so that pictures load once.

import { day, seconds } from '../amounts.js'
import { filter, hide, keyed, make, put, write } from '../elements.js'
import { empty } from './overview.js'
import { picture, showRun } from './run.js'

const STATUSES = ['done', 'stopped', 'failed']

export class RunsView {
  constructor(app) {
    this.app = app
    const change = () => this.update()
    this.search = filter(app.say('filterRuns'), change)
    this.status = make('select', { 'aria-label': app.say('status'), onchange: change })
    this.status.append(make('option', { value: '' }, app.say('anyStatus')))
    for (const status of STATUSES) this.status.append(make('option', { value: status }, app.say(`status.${status}`)))
    this.count = make('span', { class: 'soft' })
    this.list = make('div', { class: 'runs' })
    this.none = empty(app, 'noRuns', 'noRunsHint')
    const tools = make('div', { class: 'row' }, this.search, this.status, this.count)
    this.element = make('div', {}, tools, this.none, this.list)
  }

  enter() {
    this.app.learnRuns()
  }

  update() {
    const { app } = this
    const text = this.search.value.trim().toLowerCase()
    const wanted = (run) =>
      (!this.status.value || run.status === this.status.value) &&
      (!text || `${run.model} ${run.prompt} ${run.device} ${run.seed}`.toLowerCase().includes(text))
    const shown = app.runs.filter(wanted)
    hide(this.none, app.runs.length > 0)
    write(this.count, app.runs.length ? app.say('runsShown', { shown: shown.length, all: app.runs.length }) : '')
    keyed(this.list, shown, (run) => run.id, (run) => new RunCard(app, run))
  }
}

class RunCard {
  constructor(app, run) {
    this.app = app
    this.model = make('strong')
    this.badge = make('span', { class: 'badge' })
    this.prompt = make('span', { class: 'prompt' })
    this.about = make('span', { class: 'soft' })
    const head = make('span', { class: 'bar-head' }, this.model, this.badge)
    const texts = make('span', { class: 'run-texts' }, head, this.prompt, this.about)
    this.element = make('button', { type: 'button', class: 'run-card', 'data-run': run.id }, picture(app, run), texts)
    this.element.addEventListener('click', () => showRun(app, this.run))
  }

  update(run) {
    this.run = run
    write(this.model, run.model)
    put(this.badge, 'data-status', run.status)
    write(this.badge, this.app.say(`status.${run.status}`))
    write(this.prompt, run.prompt)
    const size = run.width && run.height ? `${run.width} × ${run.height}` : null
    const steps = run.steps === null ? null : this.app.say('stepCount', { count: run.steps })
    const seed = run.seed === null ? null : this.app.say('seedOf', { seed: run.seed })
    const facts = [size, steps, seed, run.device, seconds(run.took_s), day(run.began_s)]
    write(this.about, facts.filter(Boolean).join(' · '))
  }
}
