// Nodes of the open workflow by the ids that a run uses ("12", or "5:12" within a subgraph).

/** The outermost graph that is open. */
export function root(app) {
  return app.rootGraph ?? app.graph?.rootGraph ?? app.graph ?? null
}

/** The nodes from the outermost to the one that is meant; empty where one is not there. */
export function path(app, id) {
  const found = []
  let graph = root(app)
  for (const part of String(id).split(':')) {
    const node = graph?.getNodeById(part)
    if (!node) return []
    found.push(node)
    graph = node.subgraph ?? null
  }
  return found
}

/** The node that a run calls `id`, if it is of the class `kind` (null: of any). */
export function find(app, id, kind = null) {
  const node = path(app, id).at(-1)
  return node && (kind === null || (node.comfyClass ?? node.type) === kind) ? node : null
}

/** What a person calls the node. */
export function title(app, id, kind) {
  const node = find(app, id, kind)
  return node?.getTitle?.() ?? node?.title ?? kind ?? `#${id}`
}

/** Bring the node into view and select it. */
export function show(app, id, kind) {
  const node = find(app, id, kind)
  if (!node || !app.canvas) return
  if (node.graph && app.canvas.graph !== node.graph) app.canvas.setGraph(node.graph)
  app.canvas.centerOnNode(node)
  app.canvas.selectNode(node)
}
