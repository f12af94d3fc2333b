// The page: head, views, and the state they share.
// Only the visible view is drawn, once per frame; a snapshot costs the same after an hour.

import { get } from './api.js'
import { make } from './elements.js'
import { Head } from './head.js'
import { Moments } from './moments.js'
import { Texts, preferred } from './texts.js'
import { Watching } from './watching.js'
import { HoldersView } from './views/holders.js'
import { LeaksView } from './views/leaks.js'
import { MachineView } from './views/machine.js'
import { MemoryView } from './views/memory.js'
import { ModelsView } from './views/models.js'
import { OverviewView } from './views/overview.js'
import { RunsView } from './views/runs.js'

const VIEWS = {
  overview: OverviewView,
  machine: MachineView,
  memory: MemoryView,
  models: ModelsView,
  holders: HoldersView,
  leaks: LeaksView,
  runs: RunsView
}

class App {
  constructor(root) {
    this.root = root
    this.moments = new Moments()
    this.snapshot = null
    this.runs = []
    this.running = ''
    this.count = 0
    this.paused = false
    this.asked = 0
    this.dress(remembered('theme') ?? 'auto')
    this.speak(remembered('language') ?? preferred(navigator.languages))
    window.addEventListener('hashchange', () => this.go())
    window.addEventListener('resize', () => this.changed())
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.recolour())
    document.addEventListener('visibilitychange', () => this.changed())
    this.watching = new Watching({
      hello: (_, another) => this.greeted(another),
      history: (points) => this.recall(points),
      snapshot: (snapshot) => this.take(snapshot),
      changed: () => this.changed()
    })
  }

  // ---- what comes in

  greeted(another) {
    if (another) this.running = ''
    this.learnRuns()
  }

  recall(points) {
    this.moments.replace(points)
    this.changed()
  }

  take(snapshot) {
    this.moments.add(snapshot)
    this.latest = snapshot
    this.count += 1
    if (!this.paused) this.snapshot = snapshot
    this.noteRuns(snapshot)
    this.changed()
  }

  /** A run that is over is in the history a moment later. */
  noteRuns(snapshot) {
    const running = snapshot.processes.map((process) => process.run?.id ?? '').join()
    if (running !== this.running) setTimeout(() => this.learnRuns(), this.running ? 400 : 0)
    this.running = running
  }

  async learnRuns() {
    try {
      this.runs = (await get('/api/v1/runs?most=200')).runs
    } catch {
      return // the state of the stream says why; they are asked for again after it
    }
    this.changed()
  }

  // ---- what is shown

  changed() {
    if (this.asked || document.hidden) return
    this.asked = requestAnimationFrame(() => {
      this.asked = 0
      this.draw()
    })
  }

  draw() {
    this.head.update()
    this.view.update()
  }

  /** All elements anew in a language. */
  speak(language) {
    this.texts = new Texts(language)
    document.documentElement.lang = this.texts.language
    this.view?.leave?.()
    this.views = {}
    this.head = new Head(this, Object.keys(VIEWS))
    this.main = make('main', { id: 'view', tabindex: -1 })
    this.root.replaceChildren(this.head.element, this.main)
    this.view = null
    this.go()
  }

  say(key, values) {
    return this.texts.say(key, values)
  }

  go() {
    const name = location.hash.slice(1)
    this.tab = name in VIEWS ? name : 'overview'
    this.view?.leave?.()
    this.view = this.views[this.tab] ??= new VIEWS[this.tab](this)
    this.main.dataset.view = this.tab
    this.main.replaceChildren(this.view.element)
    document.title = `${this.say(this.tab)} · Holdfast`
    this.view.enter?.()
    if (!document.hidden) this.draw()
  }

  setLanguage(language) {
    remember('language', language)
    this.speak(language)
  }

  setTheme(theme) {
    remember('theme', theme)
    this.dress(theme)
    this.recolour()
  }

  dress(theme) {
    this.theme = theme
    document.documentElement.dataset.theme = theme
  }

  recolour() {
    for (const view of Object.values(this.views)) view.recolour?.()
    this.changed()
  }

  pause(paused) {
    this.paused = paused
    if (!paused) this.snapshot = this.latest ?? this.snapshot
    this.changed()
  }

  /** Processes that are there now, for views that ask one of them. */
  get processes() {
    return this.snapshot?.processes ?? []
  }
}

function remembered(name) {
  try {
    return localStorage.getItem(`holdfast.${name}`)
  } catch {
    return null // storage is forbidden: every visit begins anew
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`holdfast.${name}`, value)
  } catch {
    // storage is forbidden: the choice holds until the page is closed
  }
}

new App(document.getElementById('app'))
