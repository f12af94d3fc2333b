// Requests to the server. Resolves with the answer or throws Refused, never anything else.

const PATIENCE_MS = 125000 // the server gives up before that, and says so

/** The server refused, or there is none; `what`, `expected` and `hint` are for the reader. */
export class Refused extends Error {
  constructor({ kind = 'Unreachable', what, expected = null, hint = null }, status = 0) {
    super(what)
    Object.assign(this, { kind, what, expected, hint, status })
  }
}

export const get = (path) => ask(path, { method: 'GET' })
export const post = (path, body = {}) => ask(path, sending('POST', body))
export const put = (path, body) => ask(path, sending('PUT', body))

/** The address of what a process has. */
export function ofProcess(pid, ...parts) {
  return ['/api/v1/processes', pid, ...parts.map(encodeURIComponent)].join('/')
}

export function pictureOf(id) {
  return `/api/v1/runs/${encodeURIComponent(id)}/picture`
}

function sending(method, body) {
  return { method, body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } }
}

async function ask(path, options) {
  let answer
  let content = null
  try {
    answer = await fetch(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) })
    content = await answer.json()
  } catch (problem) {
    if (!answer) throw new Refused({ what: String(problem.message) })
  }
  if (!answer.ok) throw new Refused(content?.error ?? { what: `status ${answer.status}` }, answer.status)
  return content
}
