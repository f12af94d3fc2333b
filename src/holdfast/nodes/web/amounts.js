// Numbers as people read them.

const STEPS = {
  GB: { base: 1000, names: ['B', 'kB', 'MB', 'GB', 'TB'] },
  GiB: { base: 1024, names: ['B', 'KiB', 'MiB', 'GiB', 'TiB'] }
}

/** "1.24 GB": three digits, in the units that are set ("GB" or "GiB"). */
export function bytes(count, units = 'GB') {
  if (count === null || count === undefined) return '–'
  const { base, names } = STEPS[units] ?? STEPS.GB
  let value = Math.abs(count)
  let at = 0
  while (value >= base * 0.9995 && at < names.length - 1) {
    value /= base
    at += 1
  }
  const digits = at === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2
  return `${count < 0 ? '−' : ''}${value.toFixed(digits)} ${names[at]}`
}

/** "0.35 s", "12 s", "3:05". */
export function seconds(count) {
  if (count < 9.995) return `${count.toFixed(2)} s`
  if (count < 60) return `${count.toFixed(0)} s`
  const whole = Math.round(count)
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`
}

/** A share from 0 to 1, also where the whole is unknown. */
export function share(part, whole) {
  return whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0
}
