// The pack's node texts in the language of ComfyUI, where the frontend has lost them.
//
// A frontend that loads a language late (1.32 does) puts its own texts in the place of all texts of
// that language, those of packs too. The texts of our own nodes are given here again, through the
// hooks for node definitions and for new nodes. Where nothing was lost it says the same again.

/** Translate the definitions of our nodes, by their ids; others are left alone. */
export function translateDefinitions(definitions, texts) {
  for (const [id, definition] of Object.entries(definitions)) {
    const words = texts.find(['nodeDefs', id])
    if (!ours(definition) || !words) continue
    if (words.display_name) definition.display_name = words.display_name
    if (words.description) definition.description = words.description
    for (const group of ['required', 'optional']) {
      for (const [name, input] of Object.entries(definition.input?.[group] ?? {})) {
        const tooltip = words.inputs?.[key(name)]?.tooltip
        if (tooltip && input[1]) input[1].tooltip = tooltip
      }
    }
    definition.output_tooltips = definition.output_tooltips?.map(
      (tooltip, at) => words.outputs?.[at]?.tooltip ?? tooltip
    )
  }
}

/** Translate the sockets and widgets of a new node of ours. */
export function translateNode(node, texts) {
  const definition = node.constructor?.nodeData
  const words = definition && ours(definition) && texts.find(['nodeDefs', definition.name])
  if (!words) return
  for (const input of node.inputs ?? []) {
    const name = words.inputs?.[key(input.name)]?.name
    if (name) input.localized_name = name
  }
  for (const widget of node.widgets ?? []) {
    const name = words.inputs?.[key(widget.name)]?.name
    if (name) widget.label = name
  }
  ;(node.outputs ?? []).forEach((output, at) => {
    const name = words.outputs?.[at]?.name
    if (name) output.localized_name = name
  })
}

/** A name as it stands in the translations. */
function key(name) {
  return name.replaceAll('.', '_')
}

/** Whether a node is of this pack: its folder is the one this file is served from. */
function ours(definition) {
  const folder = decodeURIComponent(new URL(import.meta.url).pathname.split('/').at(-2))
  return definition.python_module === `custom_nodes.${folder}`
}
