// The panel's words in the language of ComfyUI.
//
// Covers: which language, the pack's translations (ComfyUI serves them below /i18n), English where
// there is none.  Promise: a text is always there; a failing server costs the translation only.

/** English, by key; the same as in locales/en/main.json below "holdfast". */
export const ENGLISH = {
  title: 'Holdfast memory',
  short: 'Memory',
  tooltip: 'Memory while ComfyUI works, by Holdfast',
  memory: 'Memory',
  ram: 'RAM',
  process: "ComfyUI's process",
  vram: 'VRAM {device}',
  pinned: 'Pinned RAM',
  pinnedTip: 'RAM that the GPU reads directly; the system cannot use it for anything else.',
  of: '{used} of {total}',
  allocated: '{allocated} in use, {reserved} reserved by PyTorch',
  noGpu: 'No GPU is in use here: everything runs in RAM.',
  history: 'Last {minutes} min',
  historyLabel: 'Memory over the last {minutes} minutes, at most {most}',
  running: 'Running node',
  idle: 'Nothing is running.',
  queued: '{count} in the queue',
  progress: '{percent} %',
  step: 'step {done} of {total}',
  models: 'Loaded models',
  noModels: 'No model is loaded.',
  onDevice: '{bytes} on {device}',
  offloaded: '{bytes} offloaded to RAM',
  peaks: 'Peak per node, last run',
  noPeaks: 'Run a workflow to see what each node needs.',
  node: 'Node',
  peak: 'Peak',
  added: 'Added',
  seconds: 'Time',
  show: 'Show this node',
  free: 'Free memory',
  freeTip: 'Unloads all models and empties the caches, as the node Free Memory does.',
  freeing: 'Freeing …',
  freed: 'Freed {bytes}.',
  freedNothing: 'There was nothing to free.',
  freeBusy: 'A workflow is running: its models stay until it is over.',
  freeFailed: 'Memory could not be freed.',
  details: 'Details',
  connecting: 'Connecting …',
  offline: 'Not connected: ComfyUI does not answer. It is tried again every few seconds.'
}

export class Texts {
  /** `tables` is what /i18n answers: texts by locale. */
  constructor(locale = 'en', tables = {}) {
    this.locale = locale
    this.tables = tables
  }

  /** The language that is set, with the pack's translations. */
  static async load(app, api) {
    const locale = app.extensionManager?.setting?.get('Comfy.Locale') || 'en'
    try {
      return new Texts(locale, await readTables(api))
    } catch (error) {
      console.warn('Holdfast: no translations', error)
      return new Texts(locale)
    }
  }

  /** A text of the panel; {names} in it are replaced by `values`. */
  say(key, values = {}) {
    const found = this.find(['holdfast', key]) ?? ENGLISH[key] ?? key
    return found.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole))
  }

  /** What stands at a path of the translations of this language, or of its base language. */
  find(path) {
    for (const locale of [this.locale, this.locale.split('-')[0]]) {
      const found = path.reduce((table, name) => table?.[name], this.tables[locale])
      if (found !== undefined) return found
    }
    return undefined
  }
}

async function readTables(api) {
  if (api.getCustomNodesI18n) return (await api.getCustomNodesI18n()) ?? {}
  const answer = await api.fetchApi('/i18n')
  return answer.ok ? await answer.json() : {}
}
