// Modal windows: a confirmation, or something shown large.
// Escape or a click outside closes them; the focus returns to where it was.

import { button, make } from './elements.js'

/** Ask; true where the reader agrees. */
export function confirmed(texts, { title, text, yes }) {
  return new Promise((settle) => {
    const agree = button(yes, () => close(true), { class: 'main' })
    const refuse = button(texts.say('cancel'), () => close(false))
    const buttons = make('div', { class: 'buttons' }, refuse, agree)
    const window = open(make('h2', {}, title), [make('p', {}, text), buttons], 'question', () => settle(false))
    const close = (answer) => {
      settle(answer)
      window.close()
    }
    agree.focus()
  })
}

/** A window with a heading; `closed` is called when it is gone. */
export function open(heading, content, kind = '', closed = () => {}) {
  const inner = make('div', { class: 'inner' }, heading, ...content)
  const window = make('dialog', { class: kind }, inner)
  window.addEventListener('close', () => {
    window.remove()
    closed()
  })
  window.addEventListener('click', (event) => {
    if (event.target === window) window.close()
  })
  document.body.append(window)
  window.showModal()
  return window
}
