// Everything at a glance: the machine, each process and its run, the last pictures.
// An empty page says what to do.

import { Actions } from '../actions.js'
import { bytes, clock, percent, rate, seconds, share } from '../amounts.js'
import { Chart } from '../chart.js'
import { Bar, Facts, hide, keyed, level, make, put, write } from '../elements.js'
import { picture, showRun } from './run.js'

const STAGES = ['load', 'text', 'denoise', 'decode']
const RECENT_S = 600

export class OverviewView {
  constructor(app) {
    this.app = app
    this.machine = make('div', { class: 'bars' })
    this.canvas = make('canvas', { class: 'small-chart', role: 'img' })
    this.chart = new Chart(this.canvas, { small: true })
    this.most = make('span', { class: 'soft' })
    this.processes = make('div', { class: 'processes' })
    this.pictures = make('div', { class: 'pictures' })
    this.none = empty(app, 'noProcess', 'noProcessHint')
    this.noRuns = make('p', { class: 'soft' }, app.say('noRuns'))
    this.element = make('div', { class: 'overview' }, this.side(), this.middle())
  }

  side() {
    const say = (key) => this.app.say(key)
    const memory = make('div', { class: 'chart-head' }, make('h2', {}, say('lastMinutes')), this.most)
    const more = make('a', { href: '#runs', class: 'more' }, say('allRuns'))
    return make(
      'div',
      { class: 'side' },
      card('machine', make('h2', {}, say('machine')), this.machine),
      card('memory', memory, make('a', { href: '#memory' }, this.canvas)),
      card('runs', make('h2', {}, say('lastRuns')), this.noRuns, this.pictures, more)
    )
  }

  middle() {
    return make('div', { class: 'middle' }, this.none, this.processes)
  }

  recolour() {
    this.chart.forget()
  }

  update() {
    const { app } = this
    const { snapshot } = app
    hide(this.none, snapshot === null || snapshot.processes.length > 0)
    this.showRuns(app.runs)
    if (!snapshot) return
    keyed(this.machine, machineBars(app, snapshot.machine), (bar) => bar.key, () => new Bar('used'))
    keyed(this.processes, busyFirst(snapshot.processes), (one) => one.pid, (one) => new ProcessCard(app, one))
    this.showMemory()
  }

  showMemory() {
    const timeline = this.app.moments.by.process
    if (!timeline.length) return
    const to = timeline.last
    const from = Math.max(to - RECENT_S, Math.min(timeline.first, to - 10))
    this.chart.draw(timeline, { from, to })
    const text = this.app.say('upTo', { amount: bytes(this.chart.top) })
    write(this.most, `${seconds(to - from)} · ${text}`)
    put(this.canvas, 'aria-label', `${this.app.say('lastMinutes')}, ${text}`)
  }

  showRuns(runs) {
    hide(this.noRuns, runs.length > 0)
    keyed(this.pictures, runs.slice(0, 8), (run) => run.id, (run) => new SmallRun(this.app, run))
  }
}

function card(part, ...children) {
  return make('section', { class: 'card', 'data-part': part }, ...children)
}

/** Those with a run under way first. */
function busyFirst(processes) {
  return [...processes].sort((one, other) => Number(other.run !== null) - Number(one.run !== null))
}

export function empty(app, what, hint) {
  const lines = app.say(hint).split('\n')
  const commands = lines.map((line) => make('code', {}, line))
  return make('div', { class: 'empty', hidden: true }, make('h2', {}, app.say(what)), ...commands)
}

/** Memory of the machine: RAM, nodes where there are several, GPUs. */
export function machineBars(app, machine) {
  const bar = (key, name, used, total, note = '') => {
    const part = share(used, total)
    const value = used === null || total === null ? '–' : app.say('of', { used: bytes(used), total: bytes(total) })
    return { key, name, value, shares: [part], note, level: level(part) }
  }
  const bars = [bar('ram', app.say('ram'), machine.ram_used_bytes, machine.ram_total_bytes)]
  for (const node of machine.nodes) {
    const note = app.say('cpus', { count: node.cpus })
    bars.push(bar(`node${node.id}`, app.say('node', { id: node.id }), node.used_bytes, node.total_bytes, note))
  }
  for (const gpu of machine.gpus) {
    const busy = gpu.busy === null ? null : app.say('busy', { percent: percent(gpu.busy) })
    const link = gpu.link_gb_s === null ? null : app.say('link', { rate: `${gpu.link_gb_s.toFixed(1)} GB/s` })
    const note = [busy, link].filter(Boolean).join(' · ')
    bars.push(bar(`gpu${gpu.id}`, `GPU ${gpu.id} ${gpu.label}`, gpu.used_bytes, gpu.total_bytes, note))
  }
  return bars
}

class ProcessCard {
  constructor(app, process) {
    this.app = app
    this.name = make('h2', { class: 'name' })
    this.about = make('span', { class: 'soft' })
    this.actions = new Actions(app, process.pid)
    this.run = new RunBox(app)
    this.facts = new Facts('wide')
    this.devices = make('div', { class: 'bars' })
    const head = make('div', { class: 'card-head' }, make('div', {}, this.name, this.about), this.actions.element)
    this.element = make('section', { class: 'card process', 'data-pid': process.pid })
    this.element.append(head, this.actions.outcome.element, this.run.element, this.facts.element, this.devices)
  }

  update(process) {
    const { app } = this
    write(this.name, process.name)
    const since = app.say('since', { time: clock(process.began_s, false) })
    write(this.about, `pid ${process.pid} · ${since} · Holdfast ${process.holdfast}`)
    this.actions.update(process)
    this.run.update(process.run)
    this.facts.update(this.figures(process))
    keyed(this.devices, process.devices, (one) => one.name, () => new DeviceBar(app))
  }

  figures(process) {
    const { app } = this
    const resident = process.models.reduce((sum, model) => sum + model.resident_bytes, 0)
    const pools = process.pools.reduce((sum, pool) => sum + pool.allocated_bytes, 0)
    const links = process.links.map((link) => [
      app.say('linkTo', { device: link.device }),
      rate(app.moments.rate(process.pid, link.device))
    ])
    const { leaks } = process
    return [
      [app.say('hostMemory'), bytes(process.rss_bytes)],
      [app.say('pinned'), process.pinned_bytes ? bytes(process.pinned_bytes) : null],
      [app.say('models'), process.models.length ? `${process.models.length} · ${bytes(resident)}` : null],
      [app.say('pools'), process.pools.length ? `${process.pools.length} · ${bytes(pools)}` : null],
      ...links,
      [app.say('leaks'), leaks.count ? `${leaks.count} · ${bytes(leaks.total_bytes)}` : null]
    ]
  }
}

class DeviceBar {
  constructor(app) {
    this.app = app
    this.bar = new Bar('ours', 'kept', 'others')
    this.element = this.bar.element
  }

  update(device) {
    const { allocated_bytes: allocated, reserved_bytes: reserved, used_bytes: used } = device
    const whole = device.total_bytes ?? Math.max(used ?? 0, reserved, 1)
    const amounts = { allocated: bytes(allocated), reserved: bytes(reserved) }
    const total = device.total_bytes === null ? '' : this.app.say('ofTotal', { total: bytes(whole) })
    this.bar.update({
      name: device.name,
      value: `${bytes(used ?? reserved)} ${total}`.trim(),
      shares: [share(allocated, whole), share(reserved, whole), share(used ?? reserved, whole)],
      note: this.app.say('allocated', amounts),
      level: level(share(used ?? reserved, whole)),
      known: device.total_bytes !== null
    })
  }
}

/** The run under way: what it draws, where it is, how long it will take yet. */
class RunBox {
  constructor(app) {
    this.app = app
    this.model = make('strong')
    this.prompt = make('span', { class: 'prompt' })
    this.stages = STAGES.map((stage) => make('li', { 'data-stage': stage }, app.say(`stage.${stage}`)))
    this.path = make('ol', { class: 'stages' }, ...this.stages)
    this.fill = make('span', { class: 'part used' })
    const limits = { 'aria-valuemin': 0, 'aria-valuemax': 100 }
    this.track = make('div', { class: 'track tall', role: 'progressbar', ...limits }, this.fill)
    this.text = make('span')
    this.left = make('span', { class: 'soft' })
    this.element = make(
      'div',
      { class: 'run-now' },
      make('div', { class: 'run-what' }, this.model, this.prompt),
      this.path,
      this.track,
      make('div', { class: 'bar-head' }, this.text, this.left)
    )
  }

  update(run) {
    hide(this.element, run === null)
    if (run === null) return
    write(this.model, run.model)
    write(this.prompt, run.prompt)
    const now = STAGES.indexOf(run.stage)
    hide(this.path, now < 0) // nodes of ComfyUI come in any order
    this.stages.forEach((stage, at) => put(stage, 'data-state', at < now ? 'over' : at === now ? 'now' : 'later'))
    const part = share(run.done, run.total ?? 0)
    this.fill.style.width = `${(part * 100).toFixed(1)}%`
    put(this.track, 'data-known', run.total !== null)
    put(this.track, 'aria-valuenow', Math.round(part * 100))
    put(this.track, 'aria-label', this.app.say(`stage.${run.stage}`))
    write(this.text, this.words(run, part))
    write(this.left, this.remaining(run))
  }

  words(run, part) {
    const counted = run.total !== null && run.total < 10000
    const steps = counted ? this.app.say('partOf', { done: run.done, total: run.total }) : ''
    const known = run.total === null ? '' : percent(part)
    return [this.app.say(`stage.${run.stage}`), steps, known, run.label].filter(Boolean).join(' · ')
  }

  remaining(run) {
    const taken = this.app.say('taken', { time: seconds(run.stage_s) })
    return run.left_s === null ? taken : `${taken} · ${this.app.say('left', { time: seconds(run.left_s) })}`
  }
}

class SmallRun {
  constructor(app, run) {
    this.element = make('button', { type: 'button', class: 'small-run' }, picture(app, run))
    this.element.addEventListener('click', () => showRun(app, this.run))
  }

  update(run) {
    this.run = run
    put(this.element, 'data-status', run.status)
    put(this.element, 'title', `${run.model}: ${run.prompt}`)
  }
}
