// The page's texts by language. `say` falls back to English.

import { ENGLISH } from './texts/en.js'
import { SIMPLIFIED } from './texts/zh-CN.js'
import { TRADITIONAL } from './texts/zh-TW.js'

export const LANGUAGES = { en: 'English', 'zh-TW': '繁體中文', 'zh-CN': '简体中文' }
const TABLES = { en: ENGLISH, 'zh-TW': TRADITIONAL, 'zh-CN': SIMPLIFIED }

/** The first language of the reader that there is. */
export function preferred(languages) {
  for (const language of languages) {
    const name = language.toLowerCase()
    if (name.startsWith('zh')) return /hant|tw|hk|mo/.test(name) ? 'zh-TW' : 'zh-CN'
    if (name.startsWith('en')) return 'en'
  }
  return 'en'
}

export class Texts {
  constructor(language) {
    this.language = language in TABLES ? language : 'en'
    this.table = TABLES[this.language]
  }

  say(key, values = {}) {
    const text = this.table[key] ?? ENGLISH[key] ?? key
    return text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole))
  }
}
