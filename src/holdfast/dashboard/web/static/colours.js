// Colours of series, the same as on the page of `holdfast.memory`, and the theme's for a canvas.

// Paul Tol's "bright" and "muted": apart for every common kind of colour vision.
export const COLOURS = [
  '#4477aa', '#44aa99', '#ccbb44', '#ee6677', '#66ccee', '#aa3377', '#ee8866', '#228833', '#7d82c9', '#a9a04a'
]

const probe = document.createElement('span')
probe.hidden = true

/** What a variable of the style sheet is in the theme that is on. */
export function themed(name) {
  if (!probe.isConnected) document.body.append(probe)
  probe.style.color = `var(--${name})`
  return getComputedStyle(probe).color
}
