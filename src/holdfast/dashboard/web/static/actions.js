// Actions on a process: free, unload, stop.
// Each asks first; an error shows what was expected and what to try.

import { Refused, ofProcess, post } from './api.js'
import { confirmed } from './dialogs.js'
import { button, hide, make, write } from './elements.js'

/** A line that says what came of something. */
export class Outcome {
  constructor(app) {
    this.app = app
    this.element = make('p', { class: 'outcome', role: 'status', hidden: true })
  }

  tell(text, kind = 'done') {
    this.element.dataset.kind = kind
    hide(this.element, !text)
    write(this.element, text)
  }

  /** Do something; `words(answer)` says what came of it. */
  async attempt(doing, words) {
    this.tell(this.app.say('waiting'), 'waiting')
    try {
      const answer = await doing()
      this.tell(words(answer))
      return answer
    } catch (problem) {
      if (!(problem instanceof Refused)) throw problem
      this.tell([problem.what, problem.expected, problem.hint].filter(Boolean).join('\n'), 'failed')
      return null
    }
  }
}

/** The buttons of one process and the line below them. */
export class Actions {
  constructor(app, pid) {
    this.app = app
    this.pid = pid
    this.outcome = new Outcome(app)
    const does = (name, doing) => button(app.say(name), () => this.ask(name, doing), { 'data-action': name })
    this.stop = does('stopRun', () => this.interrupt())
    this.element = make(
      'div',
      { class: 'buttons' },
      this.stop,
      does('freeCaches', () => this.free({ caches: true, models: false, garbage: true })),
      does('unloadModels', () => this.free({ caches: true, models: true, garbage: true }))
    )
  }

  update(process) {
    this.name = `${process.name} (${process.pid})`
    hide(this.stop, !process.run)
  }

  async ask(name, doing) {
    const { app } = this
    const text = app.say(`${name}.question`, { process: this.name })
    if (await confirmed(app.texts, { title: app.say(name), text, yes: app.say(name) })) await doing()
  }

  free(what) {
    const say = ({ text }) => this.app.say('freed', { text })
    return this.outcome.attempt(() => post(ofProcess(this.pid, 'free'), what), say)
  }

  interrupt() {
    const say = ({ interrupted }) => this.app.say(interrupted ? 'stopping' : 'nothingRuns')
    return this.outcome.attempt(() => post(ofProcess(this.pid, 'interrupt')), say)
  }
}
