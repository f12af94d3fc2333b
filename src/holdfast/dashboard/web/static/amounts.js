// Format numbers with their units. Unknown (null) is "–", never 0.

const NAMES = ['B', 'KB', 'MB', 'GB', 'TB', 'PB']

/** "23.8 GB": decimal units, as `holdfast run` writes them. */
export function bytes(count) {
  if (count === null || count === undefined || Number.isNaN(count)) return '–'
  let value = Math.abs(count)
  let at = 0
  while (value >= (at === 0 ? 1000 : 999.5) && at < NAMES.length - 1) {
    value /= 1000
    at += 1
  }
  const digits = at === 0 || value >= 99.95 ? 0 : 1
  return `${count < 0 ? '−' : ''}${value.toFixed(digits)} ${NAMES[at]}`
}

/** "1.2 GB/s". */
export function rate(bytesPerSecond) {
  return bytesPerSecond === null || bytesPerSecond === undefined ? '–' : `${bytes(bytesPerSecond)}/s`
}

/** "0.8 s", "53 s", "4 min", "2 h 10 min". */
export function seconds(count) {
  if (count === null || count === undefined) return '–'
  if (count < 10) return `${Math.max(0, count).toFixed(1)} s`
  if (count < 120) return `${count.toFixed(0)} s`
  const minutes = Math.round(count / 60)
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}

/** "8.4 ms", "1.20 s". */
export function milliseconds(count) {
  if (count === null || count === undefined) return '–'
  if (count < 1000) return `${count.toFixed(count < 100 ? 1 : 0)} ms`
  return `${(count / 1000).toFixed(count < 10000 ? 2 : 1)} s`
}

/** A share from 0 to 1, also where the whole is unknown. */
export function share(part, whole) {
  return part !== null && whole > 0 ? Math.min(1, Math.max(0, part / whole)) : 0
}

/** "63 %". */
export function percent(part) {
  return part === null || part === undefined ? '–' : `${Math.round(part * 100)} %`
}

/** "14:03:21" of a time in seconds since 1970. */
export function clock(atS, withSeconds = true) {
  const date = new Date(atS * 1000)
  const parts = [date.getHours(), date.getMinutes()]
  if (withSeconds) parts.push(date.getSeconds())
  return parts.map((part) => String(part).padStart(2, '0')).join(':')
}

/** "2026-03-01 14:03". */
export function day(atS) {
  const date = new Date(atS * 1000)
  const parts = [date.getFullYear(), date.getMonth() + 1, date.getDate()]
  return `${parts.map((part) => String(part).padStart(2, '0')).join('-')} ${clock(atS, false)}`
}
