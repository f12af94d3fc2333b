// Loaded models, and sliders for their budgets.
// A slider sends one request when it is released and shows the result beside it; updates do not move
// a slider that is held.

import { Outcome } from '../actions.js'
import { bytes, milliseconds, share } from '../amounts.js'
import { ofProcess, put as send } from '../api.js'
import { Bar, Facts, button, hide, keyed, make, put, write } from '../elements.js'
import { empty } from './overview.js'

const STEPS = 1000
const ROOM = 1.25

export class ModelsView {
  constructor(app) {
    this.app = app
    this.list = make('div', { class: 'groups' })
    this.none = empty(app, 'noModels', 'noModelsHint')
    this.element = make('div', {}, this.none, this.list)
  }

  update() {
    const groups = this.app.processes.flatMap(groupsOf)
    hide(this.none, groups.length > 0 || this.app.snapshot === null)
    keyed(this.list, groups, (group) => group.key, (group) => new GroupCard(this.app, group))
  }
}

/** Models that share a budget are one group; the others are groups of their own. */
export function groupsOf(process) {
  const groups = new Map()
  for (const model of process.models) {
    const key = `${process.pid}/${model.group === null ? `model ${model.id}` : `group ${model.group}`}`
    if (!groups.has(key)) groups.set(key, { key, process, models: [] })
    groups.get(key).models.push(model)
  }
  return [...groups.values()]
}

class GroupCard {
  constructor(app, group) {
    this.app = app
    this.title = make('h2', { class: 'name' })
    this.about = make('span', { class: 'soft' })
    this.budget = new Budget(app)
    this.models = make('div', { class: 'models' })
    const head = make('div', { class: 'card-head' }, make('div', {}, this.title, this.about))
    this.element = make('section', { class: 'card group', 'data-pid': group.process.pid })
    this.element.append(head, this.budget.element, this.models)
  }

  update({ process, models }) {
    const devices = [...new Set(models.map((model) => model.device))].join(', ')
    const [only] = models
    const several = this.app.say('together', { count: models.length, device: devices })
    write(this.title, models.length === 1 ? only.name : several)
    const where = models.length === 1 ? `${devices} · ` : ''
    const keeper = this.app.say('keptBy', { keeper: this.app.say(`keeper.${only.keeper}`) })
    write(this.about, `${where}${process.name} · pid ${process.pid} · ${keeper}`)
    this.budget.update(process, models)
    keyed(this.models, models, (model) => model.id, () => new ModelRow(this.app, models.length > 1))
  }
}

/** One budget: a slider, a field for "6GB", and what came of the last change. */
class Budget {
  constructor(app) {
    this.app = app
    this.held = false
    this.asking = false
    this.slider = make('input', { type: 'range', min: 0, max: STEPS, step: 1, 'aria-label': app.say('budget') })
    const plain = { spellcheck: 'false', autocomplete: 'off', 'aria-label': app.say('budgetText') }
    this.field = make('input', { type: 'text', size: 9, placeholder: '6GB', ...plain })
    this.set = button(app.say('set'), () => this.type())
    this.open = button(app.say('noLimit'), () => this.send(null), { class: 'quiet' })
    this.now = make('output', { class: 'now' })
    this.least = make('span')
    this.most = make('span')
    this.reason = make('p', { class: 'soft', hidden: true })
    this.outcome = new Outcome(app)
    this.listen()
    const scale = make('div', { class: 'scale' }, this.least, this.most)
    const slide = make('div', { class: 'slide' }, this.slider, scale)
    const type = make('div', { class: 'type' }, this.field, this.set, this.open)
    const label = make('div', { class: 'label' }, make('span', { class: 'soft' }, app.say('budget')), this.now)
    this.controls = make('div', { class: 'budget' }, label, slide, type)
    this.element = make('div', {}, this.controls, this.reason, this.outcome.element)
  }

  listen() {
    this.slider.addEventListener('input', () => {
      this.held = true
      this.mark(this.chosen())
    })
    this.slider.addEventListener('change', () => {
      this.held = false
      this.send(this.chosen())
    })
    this.field.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') this.type()
    })
  }

  update(process, models) {
    this.pid = process.pid
    const able = models.find((model) => model.adjustable)
    this.id = able?.id ?? null
    const [model] = able ? [able] : models
    const weights = models.reduce((sum, one) => sum + one.weight_bytes, 0)
    const least = Math.max(0, ...models.map((one) => one.smallest_bytes ?? 0))
    if (least || !this.low) this.low = least // of a new plan it is known a moment later
    this.high = Math.max(weights * ROOM, model.budget_bytes ?? 0, this.low * ROOM, this.low + 1000)
    for (const control of [this.slider, this.field, this.set, this.open]) {
      if (control.disabled === Boolean(able)) control.disabled = !able
    }
    hide(this.reason, Boolean(able))
    write(this.reason, able ? '' : this.app.say(`fixed.${model.keeper}`))
    write(this.least, bytes(this.low))
    write(this.most, bytes(this.high))
    if (!this.held && !this.asking) this.show(model.budget_bytes)
  }

  show(budget) {
    const part = budget === null ? 1 : share(budget - this.low, this.high - this.low)
    const position = String(Math.round(part * STEPS))
    if (this.slider.value !== position) this.slider.value = position
    this.mark(budget)
  }

  mark(budget) {
    const text = budget === null ? this.app.say('unlimited') : bytes(budget)
    write(this.now, text)
    put(this.slider, 'aria-valuetext', text)
  }

  /** What the slider stands at, to four digits, and never below what is needed. */
  chosen() {
    const part = Number(this.slider.value) / STEPS
    if (part === 0) return Math.ceil(this.low)
    return Math.max(Math.ceil(this.low), Number((this.low + part * (this.high - this.low)).toPrecision(4)))
  }

  type() {
    const text = this.field.value.trim()
    if (text) this.send(text)
    else this.field.focus()
  }

  async send(budget) {
    this.asking = true
    const address = ofProcess(this.pid, 'models', this.id, 'budget')
    const words = (model) => this.words(model)
    const done = await this.outcome.attempt(() => send(address, { budget }), words)
    this.asking = false
    if (done) {
      this.field.value = ''
      this.show(done.budget_bytes)
    } else this.app.changed()
  }

  words(model) {
    if (model.budget_bytes === null) return this.app.say('budgetOpen')
    return this.app.say('budgetSet', { budget: bytes(model.budget_bytes) })
  }
}

class ModelRow {
  constructor(app, named) {
    this.app = app
    this.named = named
    this.bar = new Bar('ours', 'streamed')
    this.facts = new Facts('wide')
    this.element = make('div', { class: 'model' }, this.bar.element, this.facts.element)
  }

  update(model) {
    const { app } = this
    const { weight_bytes: weights, resident_bytes: resident, streamed_bytes: streamed } = model
    const whole = Math.max(weights, resident, streamed, 1)
    const here = Math.min(resident, Math.max(0, weights - streamed))
    const amounts = { resident: bytes(resident), streamed: bytes(streamed) }
    this.element.dataset.model = model.id
    this.bar.update({
      name: this.named ? model.name : app.say('weights'),
      value: model.running ? `${bytes(weights)} · ${app.say('runs now')}` : bytes(weights),
      shares: [share(here, whole), share(here + streamed, whole)],
      note: app.say(streamed ? 'staysAndStreams' : 'stays', amounts)
    })
    this.facts.update([
      [app.say('overLink'), streamed ? bytes(model.link_bytes) : null],
      [app.say('predicted'), model.predicted_ms === null ? null : milliseconds(model.predicted_ms)],
      [app.say('passes'), String(model.passes)]
    ])
  }
}
