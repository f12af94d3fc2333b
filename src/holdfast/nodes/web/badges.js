// What each node needed, as a badge on the node.
//
// Covers: peaks by workflow and node, badges on nodes of both kinds (canvas and Vue).
// Leaves to others: where peaks come from (watching).
// Promise: only `node.badges` is touched, and only our own badge in it; what a node needed in an
// earlier run stays on it until it has run again.

import { bytes } from './amounts.js'
import { path, root } from './graph.js'

const COLOURS = {
  usual: { fgColor: '#e6fbff', bgColor: '#0b6475' },
  highest: { fgColor: '#fff4e0', bgColor: '#a85a00' }
}

export class Badges {
  constructor(app, settings) {
    this.app = app
    this.settings = settings
    this.peaks = new Map() // of a workflow, by node, as /holdfast/peaks tells them
    this.shown = new WeakMap() // node -> its badge
  }

  /** Keep the peaks of a run of the workflow with this id, and show them. */
  take(workflow, peaks) {
    if (!workflow || !peaks.length) return
    const kept = this.peaks.get(workflow) ?? new Map()
    for (const peak of peaks) kept.set(peak.node, peak)
    this.peaks.set(workflow, kept)
    this.refresh()
  }

  /** Give every node of the open workflow the badge it should have. */
  refresh() {
    const graph = root(this.app)
    if (!graph || !window.LGraphBadge) return
    const wanted = this.settings.badges ? this.wanted(graph) : new Map()
    for (const node of everyNode(graph)) this.set(node, wanted.get(node) ?? null)
    this.app.canvas?.setDirty(true, true)
  }

  /** The peak for each node; a subgraph has the highest of what is in it. */
  wanted(graph) {
    const found = new Map()
    for (const peak of this.peaks.get(graph.id)?.values() ?? []) {
      const nodes = path(this.app, peak.node)
      const node = nodes.at(-1)
      if (!node || (peak.kind && (node.comfyClass ?? node.type) !== peak.kind)) continue
      for (const one of nodes) {
        if (level(peak) >= level(found.get(one))) found.set(one, peak)
      }
    }
    return found
  }

  set(node, peak) {
    const old = this.shown.get(node)
    const options = peak ? { text: this.words(peak), ...this.colours(peak) } : null
    const looks = options ? options.text + options.bgColor : ''
    if ((old?.looks ?? '') === looks && (!old || node.badges.includes(old.get))) return
    const badges = (node.badges ?? []).filter((badge) => badge !== old?.get)
    this.shown.delete(node)
    if (options) {
      const badge = new window.LGraphBadge(options)
      const get = () => badge
      badges.push(get)
      this.shown.set(node, { looks, get })
    }
    // The same list, as Vue nodes hold on to it.
    node.badges.splice(0, node.badges.length, ...badges)
    // Vue nodes look at their badges again when a property of the node was set.
    node.mode = node.mode // eslint-disable-line no-self-assign
  }

  words(peak) {
    const { units } = this.settings
    const added = peak.above_bytes >= 1e6 ? ` (+${bytes(peak.above_bytes, units)})` : ''
    return `▲ ${bytes(level(peak), units)}${added}`
  }

  colours(peak) {
    const all = this.peaks.get(root(this.app)?.id)?.values() ?? []
    const added = [...all].map((one) => one.above_bytes)
    const most = Math.max(...added)
    return peak.above_bytes === most && most >= 1e6 ? COLOURS.highest : COLOURS.usual
  }
}

/** What counts: the devices' memory where there is a device. */
export function level(peak) {
  return peak ? (peak.device_bytes ?? peak.ram_bytes) : -1
}

function* everyNode(graph) {
  for (const node of graph.nodes ?? []) {
    yield node
    if (node.subgraph) yield* everyNode(node.subgraph)
  }
}
