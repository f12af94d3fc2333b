// The head of the page: name, state of the stream, tabs, language, theme, pause.
// Tabs work with the arrow keys; a screen reader announces a new state once.

import { clock } from './amounts.js'
import { button, hide, make, put, write } from './elements.js'
import { LANGUAGES } from './texts.js'

const THEMES = ['auto', 'light', 'dark']
const SYMBOLS = { auto: '◐', light: '☀', dark: '☾' }

export class Head {
  constructor(app, names) {
    this.app = app
    this.element = make('header', { class: 'head' })
    this.host = make('span', { class: 'host' })
    this.element.append(
      make(
        'div',
        { class: 'top' },
        make('span', { class: 'mark', 'aria-hidden': 'true' }),
        make('h1', {}, 'Holdfast'),
        this.host,
        this.status(),
        make('span', { class: 'grow' }),
        this.tools()
      ),
      this.tabs(names),
      this.banner()
    )
  }

  say(key, values) {
    return this.app.say(key, values)
  }

  status() {
    this.state = make('span', { class: 'state', role: 'status' })
    this.time = make('span', { class: 'time' })
    this.live = make('div', { class: 'live' }, make('i', { class: 'dot' }), this.state, this.time)
    return this.live
  }

  tools() {
    const app = this.app
    this.pause = button('', () => app.pause(!app.paused), { class: 'pause' })
    const choose = (event) => app.setLanguage(event.target.value)
    this.language = make('select', { 'aria-label': this.say('language'), onchange: choose })
    for (const [code, name] of Object.entries(LANGUAGES)) {
      this.language.append(make('option', { value: code, selected: code === app.texts.language }, name))
    }
    const next = () => app.setTheme(THEMES[(THEMES.indexOf(app.theme) + 1) % THEMES.length])
    this.theme = button('', next, { class: 'theme' })
    return make('div', { class: 'tools' }, this.pause, this.language, this.theme)
  }

  tabs(names) {
    this.links = names.map((name) =>
      make('a', { href: `#${name}`, role: 'tab', 'data-tab': name, 'aria-controls': 'view' }, this.say(name))
    )
    const bar = make('nav', { class: 'tabs', role: 'tablist', 'aria-label': this.say('views') }, ...this.links)
    bar.addEventListener('keydown', (event) => this.key(event))
    return bar
  }

  key(event) {
    const at = this.links.indexOf(document.activeElement)
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.links.length - 1 }[event.key]
    if (at < 0 || to === undefined) return
    event.preventDefault()
    const link = this.links[(to + this.links.length) % this.links.length]
    link.click()
    link.focus()
  }

  banner() {
    this.what = make('strong')
    this.hint = make('span')
    this.notice = make('div', { class: 'banner', role: 'alert', hidden: true }, this.what, this.hint)
    return this.notice
  }

  update() {
    const { app } = this
    const { state, refusal } = app.watching ?? { state: 'connecting' }
    const shown = state === 'live' && app.paused ? 'paused' : state
    put(this.live, 'data-state', shown)
    put(this.live, 'data-snapshots', app.count)
    write(this.state, this.say(`state.${shown}`))
    write(this.time, app.snapshot ? clock(app.snapshot.at_s) : '')
    write(this.host, app.snapshot?.machine.host ?? '')
    write(this.pause, this.say(app.paused ? 'resume' : 'pause'))
    put(this.pause, 'aria-pressed', app.paused)
    write(this.theme, SYMBOLS[app.theme])
    put(this.theme, 'aria-label', this.say(`theme.${app.theme}`))
    put(this.theme, 'title', this.say(`theme.${app.theme}`))
    for (const link of this.links) {
      put(link, 'aria-selected', link.dataset.tab === app.tab)
      put(link, 'tabindex', link.dataset.tab === app.tab ? 0 : -1)
    }
    this.warn(state, refusal)
  }

  /** What the reader has to do, where it is something. */
  warn(state, refusal) {
    hide(this.notice, state !== 'refused' && state !== 'reconnecting')
    if (state === 'refused') {
      write(this.what, refusal.status === 401 ? this.say('needsToken') : refusal.what)
      write(this.hint, refusal.status === 401 ? this.say('needsTokenHint') : (refusal.hint ?? ''))
    } else if (state === 'reconnecting') {
      write(this.what, this.say('gone'))
      write(this.hint, this.say('goneHint'))
    }
  }
}
