// Timelines by process, model, pool and device, and link rates, from snapshots and the server's
// history. Memory is bounded.

import { Timeline } from './points.js'

export const WAYS = ['process', 'model', 'pool', 'device']
const RATE_S = 2
const SAMPLES = 12

export class Moments {
  constructor() {
    this.by = Object.fromEntries(WAYS.map((way) => [way, new Timeline()]))
    this.names = new Map()
    this.links = new Map()
  }

  /** The server's history in place of all that is here. */
  replace(points) {
    for (const way of WAYS) this.by[way].clear()
    for (const point of points) this.take(point)
  }

  add(snapshot) {
    this.learn(snapshot)
    this.take({ at_s: snapshot.at_s, processes: snapshot.processes.map(asPoint) })
    this.count(snapshot)
  }

  /** Names of processes and models; history knows their numbers alone. */
  learn(snapshot) {
    const names = new Map()
    for (const process of snapshot.processes) {
      names.set(String(process.pid), process.name)
      for (const model of process.models) names.set(`${process.pid}/${model.id}`, model.name)
    }
    for (const [key, name] of this.names) {
      if (names.size < 200 && !names.has(key)) names.set(key, name)
    }
    this.names = names
  }

  name(key, without) {
    return this.names.get(key) ?? without
  }

  take({ at_s: atS, processes }) {
    const values = { process: [], model: [], pool: [], device: [] }
    for (const { pid, rss_bytes: rss, devices, models, pools, name } of processes) {
      const called = this.name(String(pid), name ?? '')
      values.process.push([`${pid}`, called ? `${called} (${pid})` : `${pid}`, rss])
      values.device.push(['host', 'RAM', rss])
      for (const [id, count] of Object.entries(models)) {
        values.model.push([`${pid}/${id}`, `${this.name(`${pid}/${id}`, id)} (${pid})`, count])
      }
      for (const [pool, count] of Object.entries(pools)) {
        values.pool.push([`${pid}/${pool}`, `${pool} (${pid})`, count])
      }
      for (const [device, count] of Object.entries(devices)) values.device.push([device, device, count])
    }
    for (const way of WAYS) this.by[way].push(atS, values[way])
  }

  // ---- links

  count(snapshot) {
    const links = new Map()
    for (const process of snapshot.processes) {
      for (const link of process.links) {
        const key = `${process.pid}/${link.device}`
        const samples = this.links.get(key) ?? []
        samples.push([snapshot.at_s, link.copied_bytes])
        const old = () => samples.length > 2 && snapshot.at_s - samples[1][0] > RATE_S
        while (samples.length > SAMPLES || old()) samples.shift()
        links.set(key, samples)
      }
    }
    this.links = links
  }

  /** Bytes a second over the last seconds; null where there is one look only. */
  rate(pid, device) {
    const samples = this.links.get(`${pid}/${device}`) ?? []
    if (samples.length < 2) return null
    const [from, to] = [samples[0], samples.at(-1)]
    return to[0] > from[0] ? Math.max(0, to[1] - from[1]) / (to[0] - from[0]) : null
  }
}

/** A process as the server's history has it. Pools with the same name are one. */
function asPoint(process) {
  const pools = {}
  for (const pool of process.pools) pools[pool.name] = (pools[pool.name] ?? 0) + pool.allocated_bytes
  return {
    pid: process.pid,
    rss_bytes: process.rss_bytes,
    devices: Object.fromEntries(process.devices.map((device) => [device.name, device.reserved_bytes])),
    models: Object.fromEntries(process.models.map((model) => [model.id, model.resident_bytes])),
    pools
  }
}
