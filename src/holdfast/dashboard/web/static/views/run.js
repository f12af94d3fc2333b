// One finished run, large, with all its data.

import { bytes, day, milliseconds, seconds } from '../amounts.js'
import { pictureOf } from '../api.js'
import { open } from '../dialogs.js'
import { Facts, button, make } from '../elements.js'

/** A picture of a run, or a word where it has none. */
export function picture(app, run) {
  const frame = make('span', { class: 'frame', 'data-none': app.say('noPicture') })
  if (run.status !== 'done') frame.classList.add('missing')
  else {
    const image = make('img', { src: pictureOf(run.id), alt: run.prompt, loading: 'lazy' })
    image.addEventListener('error', () => frame.classList.add('missing'))
    frame.append(image)
  }
  return frame
}

export function showRun(app, run) {
  const facts = new Facts('tall')
  facts.update(settings(app, run))
  const status = make('span', { class: 'badge', 'data-status': run.status }, app.say(`status.${run.status}`))
  const heading = make('h2', {}, run.model, ' ', status)
  const close = button(app.say('close'), () => window.close(), { class: 'main' })
  const error = run.error ? [make('p', { class: 'outcome', 'data-kind': 'failed' }, run.error)] : []
  const again = make('pre', { class: 'command', tabindex: 0 }, command(run))
  const texts = make(
    'div',
    { class: 'texts' },
    make('p', { class: 'prompt' }, run.prompt),
    ...error,
    facts.element,
    make('h3', {}, app.say('again')),
    again
  )
  const body = make('div', { class: 'columns' }, picture(app, run), texts)
  const window = open(heading, [body, make('div', { class: 'buttons' }, close)], 'large')
  close.focus()
}

function settings(app, run) {
  const size = run.width && run.height ? `${run.width} × ${run.height}` : null
  return [
    [app.say('when'), day(run.began_s)],
    [app.say('took'), seconds(run.took_s)],
    [app.say('device'), run.device],
    [app.say('seed'), text(run.seed)],
    [app.say('size'), size],
    [app.say('steps'), text(run.steps)],
    [app.say('frames'), run.frames > 1 ? text(run.frames) : null],
    [app.say('load'), run.load_s === null ? null : seconds(run.load_s)],
    [app.say('textTime'), run.text_ms === null ? null : milliseconds(run.text_ms)],
    [app.say('stepTime'), run.step_ms === null ? null : milliseconds(run.step_ms)],
    [app.say('decodeTime'), run.decode_ms === null ? null : milliseconds(run.decode_ms)],
    [app.say('peak'), run.peak_bytes === null ? null : bytes(run.peak_bytes)],
    [app.say('savedTo'), run.saved_to],
    [app.say('process'), `pid ${run.pid}`]
  ]
}

function text(value) {
  return value === null ? null : String(value)
}

/** What to type for the same picture again. */
export function command(run) {
  const options = [
    ['--device', /^[\w:=,]+$/.test(run.device) ? run.device : null],
    ['--seed', run.seed],
    ['--width', run.width],
    ['--height', run.height],
    ['--steps', run.steps],
    ['--frames', run.frames > 1 ? run.frames : null]
  ]
  const given = options.filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`)
  return ['holdfast run', quoted(run.model), '--prompt', quoted(run.prompt), ...given].join(' ')
}

function quoted(word) {
  return /^[\w./:@-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`
}
