// Selects the process for views that query one.

import { keyed, make, write } from '../elements.js'

export class ProcessChoice {
  /** `changed()` is called when another one is chosen. */
  constructor(app, changed) {
    this.app = app
    this.element = make('select', { 'aria-label': app.say('process'), onchange: changed, class: 'which' })
  }

  /** The number of the process, or null where there is none. */
  get pid() {
    return this.element.value ? Number(this.element.value) : null
  }

  update(processes) {
    keyed(this.element, processes, (one) => one.pid, (one) => {
      const element = make('option', { value: one.pid })
      return { element, update: (now) => write(element, `${shortened(now.name)} (pid ${now.pid})`) }
    })
    if (!this.element.value && processes.length) this.element.value = processes[0].pid
  }
}

function shortened(name) {
  return name.length > 60 ? `${name.slice(0, 59)}…` : name
}
