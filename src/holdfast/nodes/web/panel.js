// The sidebar panel: memory now, the running node, models, peaks of nodes.
//
// Covers: what is shown of a snapshot.  Leaves to others: asking for it (watching), words (texts).
// Promise: drawn into its own element only, and taken away with it; works with the keyboard and
// with a screen reader.

import { bytes, seconds, share } from './amounts.js'
import { level } from './badges.js'
import { Bar, Sparkline, make, repeat, write } from './elements.js'
import { show, title } from './graph.js'
import { KEPT_S } from './watching.js'

const MOST_PEAKS = 50

export class Panel {
  /** `free()` frees memory and gives what the server answered. */
  constructor({ app, texts, settings, watching, free }) {
    Object.assign(this, { app, texts, settings, watching, free })
    this.bars = []
    this.element = make('section', { class: 'hf-panel', 'aria-label': this.say('title') })
    this.element.append(this.head(), this.said, ...this.sections())
    this.stop = watching.listen(() => this.update())
    this.update()
  }

  say(key, values) {
    return this.texts.say(key, values)
  }

  bytes(count) {
    return bytes(count, this.settings.units)
  }

  destroy() {
    this.stop()
    this.element.remove()
  }

  // ---- building

  head() {
    this.dot = make('span', { class: 'hf-dot', 'aria-hidden': 'true' })
    this.name = make('h2', { class: 'hf-title' }, this.dot, this.say('title'))
    this.button = make(
      'button',
      { type: 'button', class: 'hf-button', title: this.say('freeTip'), onclick: () => this.press() },
      make('i', { class: 'pi pi-eraser', 'aria-hidden': 'true' }),
      make('span', {}, this.say('free'))
    )
    this.said = make('div', { class: 'hf-said', role: 'status', 'aria-live': 'polite' })
    this.said.hidden = true
    return make('header', { class: 'hf-head' }, this.name, this.button)
  }

  sections() {
    this.memory = make('div', { class: 'hf-bars' })
    this.noGpu = make('p', { class: 'hf-none' }, this.say('noGpu'))
    this.spark = new Sparkline()
    this.sparkName = make('span', {})
    this.sparkMost = make('span', {})
    const axis = make('div', { class: 'hf-axis' }, this.sparkName, this.sparkMost)
    this.node = this.runningParts()
    this.models = make('ul', { class: 'hf-list' })
    this.noModels = make('p', { class: 'hf-none' }, this.say('noModels'))
    this.noPeaks = make('p', { class: 'hf-none' }, this.say('noPeaks'))
    this.body = [
      section(this.say('running'), this.node.element),
      section(this.say('memory'), this.memory, this.noGpu, this.spark.element, axis),
      section(this.say('models'), this.models, this.noModels),
      section(this.say('peaks'), this.table(), this.noPeaks)
    ]
    return this.body
  }

  runningParts() {
    const name = make('div', { class: 'hf-running-name' })
    const step = make('div', { class: 'hf-note' })
    const fill = make('span', { class: 'hf-part hf-ours' })
    const track = make(
      'div',
      { class: 'hf-track', role: 'progressbar', 'aria-valuemin': 0, 'aria-valuemax': 100 },
      fill
    )
    track.setAttribute('aria-label', this.say('running'))
    return { name, step, fill, track, element: make('div', { class: 'hf-running' }, name, track, step) }
  }

  table() {
    const heads = ['node', 'peak', 'added', 'seconds'].map((key) =>
      make('th', { scope: 'col' }, this.say(key))
    )
    this.rows = make('tbody', {})
    this.peaks = make('table', { class: 'hf-table', 'aria-label': this.say('peaks') })
    this.peaks.append(make('thead', {}, make('tr', {}, ...heads)), this.rows)
    return this.peaks
  }

  // ---- what is shown

  update() {
    const { last, connected } = this.watching
    const state = connected ? 'live' : connected === false ? 'offline' : 'connecting'
    this.element.dataset.state = state
    this.dot.title = state
    this.tellState(state)
    this.button.disabled = state !== 'live' || this.pressed === true
    for (const part of this.body) part.hidden = !last
    if (!last) return
    this.showMemory(last)
    this.showRunning(last)
    this.showModels(last.models)
    this.showPeaks(last.peaks.nodes)
  }

  /** Say that there is no connection; what else was said stays while there is one. */
  tellState(state) {
    const isState = this.said.dataset.kind === 'state'
    if (state !== 'live') this.tell(this.say(state), 'state')
    else if (isState) this.tell('')
  }

  /** `details` is the server's own account, for who wants to read it. */
  tell(text, kind = '', details = '') {
    this.said.dataset.kind = kind
    this.said.hidden = !text
    if (this.told === text + details) return // a screen reader would say it again
    this.told = text + details
    this.said.replaceChildren(make('div', {}, text))
    if (details) {
      const summary = make('summary', {}, this.say('details'))
      this.said.append(make('details', {}, summary, make('pre', {}, details)))
    }
  }

  showMemory(now) {
    const bars = [...now.devices.map((device) => this.deviceBar(device)), this.ramBar(now.ram)]
    if (now.pinned_bytes > 0) bars.push(this.pinnedBar(now))
    while (this.bars.length < bars.length) {
      this.bars.push(new Bar('ours', 'kept', 'others'))
      this.memory.append(this.bars.at(-1).element)
    }
    while (this.bars.length > bars.length) this.bars.pop().element.remove()
    bars.forEach((values, at) => this.bars[at].set(values))
    this.noGpu.hidden = now.devices.length > 0
    this.showHistory(now)
  }

  deviceBar(device) {
    const { total_bytes: most, used_bytes: now, allocated_bytes, reserved_bytes } = device
    const value = this.say('of', { used: this.bytes(now), total: this.bytes(most) })
    const amounts = { allocated: this.bytes(allocated_bytes), reserved: this.bytes(reserved_bytes) }
    return {
      name: this.say('vram', { device: device.label ?? device.name }),
      value,
      most,
      now,
      shares: [share(allocated_bytes, most), share(reserved_bytes, most), share(now, most)],
      note: this.say('allocated', amounts)
    }
  }

  ramBar(ram) {
    const { total_bytes: most, used_bytes: now, process_bytes } = ram
    return {
      name: this.say('ram'),
      value: this.say('of', { used: this.bytes(now), total: this.bytes(most) }),
      most,
      now,
      shares: [share(process_bytes, most), share(process_bytes, most), share(now, most)],
      note: `${this.say('process')}: ${this.bytes(process_bytes)}`
    }
  }

  pinnedBar(now) {
    const most = now.ram.total_bytes
    return {
      name: this.say('pinned'),
      value: this.bytes(now.pinned_bytes),
      most,
      now: now.pinned_bytes,
      shares: [0, share(now.pinned_bytes, most)],
      tip: this.say('pinnedTip')
    }
  }

  showHistory(now) {
    const onDevice = now.devices.length > 0
    const value = (point) => (onDevice ? point.device_bytes : point.ram_bytes) ?? 0
    const points = this.watching.points.map((point) => [point.at_s, value(point)])
    const most = Math.max(1, ...points.map((point) => point[1]))
    const minutes = span(now.at_s - (points[0]?.[0] ?? now.at_s))
    const text = this.bytes(most)
    const label = this.say('historyLabel', { minutes, most: text })
    this.spark.set(points, now.at_s - minutes * 60, now.at_s, most * 1.05, label)
    write(this.sparkName, this.say('history', { minutes }))
    write(this.sparkMost, `▲ ${text}`)
  }

  showRunning(now) {
    const { name, step, fill, track, element } = this.node
    const working = now.working
    element.dataset.idle = String(!working)
    track.hidden = !working
    const waiting = now.prompts - (working ? 1 : 0)
    const queued = waiting > 0 ? this.say('queued', { count: waiting }) : ''
    if (!working) {
      write(name, this.say('idle'))
      write(step, queued)
      return
    }
    write(name, working.node === null ? '…' : title(this.app, working.node, working.kind))
    const done = share(working.done ?? 0, working.total ?? 0)
    const percent = Math.round(done * 100)
    fill.style.width = `${percent}%`
    track.setAttribute('aria-valuenow', percent)
    const counted = (working.total ?? 0) > 1
    const steps = counted ? this.say('step', { done: working.done, total: working.total }) : ''
    const parts = [counted ? this.say('progress', { percent }) : '', steps, queued]
    write(step, parts.filter(Boolean).join(' · '))
  }

  showModels(models) {
    this.noModels.hidden = models.length > 0
    const create = () => {
      const bar = new Bar('ours', 'kept')
      const item = make('li', {}, bar.element)
      item.bar = bar
      return item
    }
    repeat(this.models, models, create, (item, model) => item.bar.set(this.modelBar(model)))
  }

  modelBar(model) {
    const total = model.device_bytes + model.offloaded_bytes
    const here = this.say('onDevice', { bytes: this.bytes(model.device_bytes), device: model.device })
    const away = this.say('offloaded', { bytes: this.bytes(model.offloaded_bytes) })
    return {
      name: model.name,
      value: this.bytes(total),
      most: total,
      now: model.device_bytes,
      shares: [share(model.device_bytes, total), 1],
      note: model.offloaded_bytes > 0 ? `${here}, ${away}` : here
    }
  }

  showPeaks(peaks) {
    const shown = peaks.slice(0, MOST_PEAKS)
    const most = Math.max(1, ...shown.map((peak) => peak.above_bytes))
    this.noPeaks.hidden = shown.length > 0
    this.peaks.hidden = shown.length === 0
    repeat(this.rows, shown, () => this.row(), (row, peak) => this.fill(row, peak, most))
  }

  row() {
    const button = make('button', { type: 'button', class: 'hf-link', title: this.say('show') })
    const figures = [0, 1, 2].map(() => make('td', {}))
    const row = make('tr', {}, make('th', { scope: 'row' }, button), ...figures)
    button.addEventListener('click', () => show(this.app, row.peak.node, row.peak.kind))
    return Object.assign(row, { button, figures })
  }

  fill(row, peak, most) {
    row.peak = peak
    write(row.button, title(this.app, peak.node, peak.kind))
    write(row.figures[0], this.bytes(level(peak)))
    write(row.figures[1], peak.above_bytes > 0 ? `+${this.bytes(peak.above_bytes)}` : '–')
    write(row.figures[2], seconds(peak.seconds))
    row.figures[1].style.setProperty('--hf-share', `${(share(peak.above_bytes, most) * 100).toFixed(1)}%`)
  }

  // ---- the button

  async press() {
    this.pressed = true
    this.button.disabled = true
    this.tell(this.say('freeing'))
    const answer = await this.free()
    this.pressed = false
    this.tell(answer.text, answer.kind, answer.details)
    await this.watching.ask()
    this.button.focus()
  }
}

/** How many minutes to show where so many seconds are known. */
function span(seconds) {
  return [1, 2, KEPT_S / 60].find((minutes) => seconds <= minutes * 60) ?? KEPT_S / 60
}

function section(name, ...children) {
  return make('section', { class: 'hf-section' }, make('h3', {}, name), ...children)
}
