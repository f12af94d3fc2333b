// Holdfast in ComfyUI's window: a sidebar panel with live memory, and a badge on each node.
//
// Covers: what is registered with ComfyUI, and its settings.  Leaves to others: the panel (panel),
// badges, when the server is asked (watching).  Promise: registered extension APIs only; nothing of
// ComfyUI's own page is looked for or changed.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { bytes } from './amounts.js'
import { Badges } from './badges.js'
import { root } from './graph.js'
import { translateDefinitions, translateNode } from './localizing.js'
import { Panel } from './panel.js'
import { Texts } from './texts.js'
import { Watching } from './watching.js'

const TAB = 'holdfast-memory'
const OVER = ['execution_success', 'execution_error', 'execution_interrupted']

const settings = { interval: 1, badges: true, units: 'GB' }
const texts = await Texts.load(app, api)
const watching = new Watching(api, () => settings.interval * 1000)
const badges = new Badges(app, settings)
const prompts = new Map() // the workflow of each run of this window
let panel = null
let ready = false

/**
 * A setting, in our own words. ComfyUI would look them up by the id, but a frontend that has lost
 * the words of packs (see localizing) shows those of another language. So the ids are others than
 * in locales/*\/settings.json, and ComfyUI shows the name that it is given.
 */
function setting(key, name, tooltip, more) {
  const label = key[0].toUpperCase() + key.slice(1)
  const words = texts.find(['settings', `Holdfast_Panel_${label}`]) ?? {}
  const group = texts.find(['settingsCategories', 'Memory panel']) ?? 'Memory panel'
  return {
    id: `Holdfast.${label}`,
    name: words.name ?? name,
    tooltip: words.tooltip ?? tooltip,
    category: ['Holdfast', group, label],
    defaultValue: settings[key],
    onChange(value) {
      settings[key] = value
      if (ready) badges.refresh() // not before there is a graph
      panel?.update()
    },
    ...more
  }
}

function command(id, label, icon, run) {
  const words = texts.find(['commands', id.replaceAll('.', '_')]) ?? {}
  return { id, label: words.label ?? label, icon, function: run }
}

/** Free memory as the node Free Memory does; a text to show. */
async function free() {
  try {
    const answer = await api.fetchApi('/holdfast/free', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: '{}'
    })
    const said = await answer.json()
    if (!answer.ok) return { kind: 'warn', text: said.error ?? texts.say('freeFailed') }
    return { kind: 'done', text: freedText(said), details: said.text }
  } catch {
    return { kind: 'warn', text: texts.say('freeFailed') }
  }
}

function freedText(said) {
  if (said.later) return texts.say('freeBusy')
  if (said.freed_bytes < 1e6) return texts.say('freedNothing')
  return texts.say('freed', { bytes: bytes(said.freed_bytes, settings.units) })
}

async function freeWithToast() {
  const answer = await free()
  const severity = answer.kind === 'warn' ? 'warn' : 'success'
  app.extensionManager.toast.add({ severity, summary: texts.say('free'), detail: answer.text, life: 5000 })
}

/** Follow a run of this window to its end, and give its nodes their badges. */
function follow() {
  let running = null
  api.addEventListener('execution_start', ({ detail }) => {
    running = detail.prompt_id
    prompts.set(detail.prompt_id, root(app)?.id)
    watching.want('run', settings.badges)
  })
  for (const event of OVER) {
    api.addEventListener(event, async ({ detail }) => {
      if (settings.badges) await watching.ask()
      if (running === detail.prompt_id) watching.want('run', false) // else the next has begun
      prompts.delete(detail.prompt_id)
    })
  }
  watching.listen(() => {
    const peaks = watching.last?.peaks
    if (watching.connected && prompts.has(peaks.prompt)) {
      badges.take(prompts.get(peaks.prompt), peaks.nodes)
    }
  })
}

function addStyle() {
  const link = document.createElement('link')
  link.rel = 'stylesheet'
  link.href = new URL('./holdfast.css', import.meta.url).href
  document.head.append(link)
}

const tab = {
  id: TAB,
  icon: 'pi pi-chart-bar',
  title: texts.say('title'),
  label: texts.say('short'),
  tooltip: texts.say('tooltip'),
  type: 'custom',
  render(element) {
    if (panel?.element.parentElement === element) return
    panel?.destroy()
    panel = new Panel({ app, texts, settings, watching, free })
    element.replaceChildren(panel.element)
    watching.want('panel', true)
  },
  destroy() {
    watching.want('panel', false)
    panel?.destroy()
    panel = null
  }
}

app.registerExtension({
  name: 'Holdfast.Memory',
  settings: [
    setting(
      'units',
      'Units of memory',
      'GB counts in thousands, as vendors do; GiB counts in 1024s, as drivers do.',
      { type: 'combo', options: ['GB', 'GiB'] }
    ),
    setting(
      'badges',
      "Show each node's peak memory as a badge",
      'After a run, every node that ran shows the most memory in use while it ran.',
      { type: 'boolean' }
    ),
    setting(
      'interval',
      'Refresh the memory panel every (seconds)',
      'Only while the panel is open, or while a workflow runs with badges on.',
      { type: 'slider', attrs: { min: 0.5, max: 10, step: 0.5 } }
    )
  ],
  commands: [
    command('Holdfast.OpenPanel', 'Holdfast: show memory', 'pi pi-chart-bar', () =>
      app.extensionManager.sidebarTab.toggleSidebarTab(TAB)
    ),
    command('Holdfast.FreeMemory', 'Holdfast: free memory', 'pi pi-eraser', freeWithToast)
  ],
  addCustomNodeDefs(definitions) {
    translateDefinitions(definitions, texts)
  },
  nodeCreated(node) {
    translateNode(node, texts)
  },
  afterConfigureGraph() {
    badges.refresh()
  },
  setup() {
    addStyle()
    app.extensionManager.registerSidebarTab(tab)
    follow()
    ready = true
  }
})
