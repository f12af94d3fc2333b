// The picture of the machine (holdfast topo), coloured by current use.
// Only shapes and texts of the picture are imported; nothing in it can run or load.

import { Outcome } from '../actions.js'
import { bytes, percent, rate, share } from '../amounts.js'
import { get } from '../api.js'
import { Bar, hide, keyed, level, make, write } from '../elements.js'
import { machineBars } from './overview.js'

const SVG = 'http://www.w3.org/2000/svg'
const SHAPES = new Set(['svg', 'g', 'rect', 'line', 'text', 'tspan', 'title', 'path', 'circle', 'polygon'])
const LEVELS = ['calm', 'warm', 'hot']
const LARGEST = 1.3 // of its own size: a small machine need not fill the screen

export class MachineView {
  constructor(app) {
    this.app = app
    this.outcome = new Outcome(app)
    this.picture = make('div', { class: 'topology' })
    this.bars = make('div', { class: 'bars' })
    this.links = make('div', { class: 'bars' })
    this.noLinks = make('p', { class: 'soft' }, app.say('noLinks'))
    this.live = []
    const legend = make('ul', { class: 'legend levels', 'aria-label': app.say('legend') })
    for (const name of LEVELS) {
      legend.append(make('li', {}, make('i', { 'data-level': name }), app.say(`level.${name}`)))
    }
    this.element = make(
      'div',
      { class: 'machine' },
      make('section', { class: 'card wide' }, this.outcome.element, this.picture, legend),
      make(
        'div',
        { class: 'side' },
        make('section', { class: 'card' }, make('h2', {}, app.say('inUse')), this.bars),
        make('section', { class: 'card' }, make('h2', {}, app.say('links')), this.noLinks, this.links)
      )
    )
  }

  async enter() {
    if (this.live.length) return
    const answer = await this.outcome.attempt(() => get('/api/v1/topology'), () => '')
    if (!answer) return
    this.places = answer.places ?? []
    this.picture.replaceChildren(imported(answer.svg))
    this.live = [...this.parts('node'), ...this.parts('gpu')]
    this.app.changed()
  }

  /** The cards of nodes or GPUs in the picture. */
  parts(kind) {
    const bars = this.picture.querySelectorAll(`[data-${kind}][data-part="bar"]`)
    return [...bars].map((bar) => new LiveBar(kind, Number(bar.dataset[kind]), bar, this.picture))
  }

  update() {
    const { snapshot } = this.app
    if (!snapshot) return
    keyed(this.bars, machineBars(this.app, snapshot.machine), (bar) => bar.key, () => new Bar('used'))
    const links = this.rates(snapshot)
    hide(this.noLinks, links.length > 0)
    keyed(this.links, links, (link) => link.key, () => new Bar('used'))
    for (const part of this.live) part.update(snapshot.machine, this.carried(part, links))
  }

  rates(snapshot) {
    return snapshot.processes.flatMap((process) =>
      process.links.map((link) => {
        const now = this.app.moments.rate(process.pid, link.device)
        const most = link.bandwidth_gb_s === null ? null : link.bandwidth_gb_s * 1e9
        const part = share(now ?? 0, most ?? 0)
        return {
          key: `${process.pid}/${link.device}`,
          device: link.device,
          now,
          name: `${link.device} · pid ${process.pid}`,
          value: most === null ? rate(now) : this.app.say('of', { used: rate(now), total: rate(most) }),
          shares: [part],
          level: 'calm',
          note: this.app.say('copied', { amount: bytes(link.copied_bytes) })
        }
      })
    )
  }

  /** What all processes send to a GPU now, in bytes a second. */
  carried(part, links) {
    const place = this.places.find((one) => one.kind === part.kind && one.id === part.id)
    const devices = new Set(place?.devices ?? [])
    return links.filter((link) => devices.has(link.device)).reduce((sum, link) => sum + (link.now ?? 0), 0)
  }
}

/** A bar of the picture that follows the machine; its text says how full it is. */
class LiveBar {
  constructor(kind, id, bar, picture) {
    Object.assign(this, { kind, id, bar })
    const find = (part) => picture.querySelector(`[data-${kind}="${id}"][data-part="${part}"]`)
    this.card = find('card') ?? picture.querySelector(`[data-${kind}="${id}"]:not([data-part])`)
    this.link = find('link')
    find('fill')?.remove()
    const place = (name) => Number(bar.getAttribute(name))
    this.width = place('width')
    this.fill = shape('rect', { x: place('x'), y: place('y'), height: 12, rx: 6, width: 0, class: 'live-fill' })
    const end = { x: place('x') + this.width - 7, y: place('y') + 9.8, 'text-anchor': 'end' }
    this.text = shape('text', { ...end, class: 'live-text' })
    bar.after(this.fill, this.text)
    if (this.link) this.addRate()
    this.fact = this.memoryText(picture)
  }

  addRate() {
    const [x, y] = ['x1', 'y2'].map((name) => Number(this.link.getAttribute(name)))
    this.rate = shape('text', { x: x - 8, y: y - 8, class: 'live-rate', 'text-anchor': 'end' })
    this.link.after(this.rate)
  }

  /** The line "18.8 GB of 25.3 GB free" in the card: it would be out of date. */
  memoryText(picture) {
    const box = ['x', 'y', 'width', 'height'].map((name) => Number(this.card?.getAttribute(name)))
    const within = (text) => {
      const [x, y] = ['x', 'y'].map((name) => Number(text.getAttribute(name)))
      return x >= box[0] && x <= box[0] + box[2] && y >= box[1] && y <= box[1] + box[3]
    }
    const found = [...picture.querySelectorAll('text')].find((text) => FREE.test(text.textContent) && within(text))
    return found ? { element: found, rest: found.textContent.replace(FREE, '') } : null
  }

  update(machine, carried) {
    const uses = this.kind === 'node' ? machine.nodes : machine.gpus
    const use = uses.find((one) => one.id === this.id)
    if (!use || use.used_bytes === null || !use.total_bytes) return
    const part = share(use.used_bytes, use.total_bytes)
    this.fill.setAttribute('width', Math.max(12, this.width * part).toFixed(1))
    this.fill.dataset.level = level(part)
    if (this.card) this.card.dataset.level = level(part)
    this.text.classList.toggle('over', part > 0.93)
    write(this.text, percent(part))
    const free = `${bytes(use.total_bytes - use.used_bytes)} of ${bytes(use.total_bytes)} free`
    if (this.fact) write(this.fact.element, `${free}${this.fact.rest}`)
    if (this.rate) write(this.rate, carried > 0 ? rate(carried) : '')
    this.link?.classList.toggle('busy', carried > 0)
  }
}

const FREE = /^[\d.]+ \w+ of [\d.]+ \w+ free/

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag)
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
  return made
}

/** The picture without anything but shapes and texts. */
export function imported(text) {
  const root = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement
  if (root.localName !== 'svg' || root.namespaceURI !== SVG) return make('p', {}, '–')
  for (const element of [root, ...root.querySelectorAll('*')]) {
    if (!SHAPES.has(element.localName) || element.namespaceURI !== SVG) element.remove()
    for (const { name } of [...element.attributes]) {
      if (/^on|href|style/i.test(name)) element.removeAttribute(name)
    }
  }
  const picture = document.importNode(root, true)
  picture.removeAttribute('font-family')
  picture.style.maxWidth = `${Math.round(Number(root.getAttribute('width')) * LARGEST)}px`
  return picture
}
