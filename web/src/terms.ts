// What a term means, where a reader may not know it. The words are those of the project's dictionary.

import words from "virtual:dictionary";
import { h } from "./dom";

const MEANINGS: ReadonlyMap<string, string> = new Map(words);

/** What a heading or a column means; its unit is no part of the word. */
export function meaning(name: string): string | undefined {
  return MEANINGS.get(name.toLowerCase().replace(/, (ms|s|ppm)$/, ""));
}

/** A name with its hint, if it has one. A hint that is no stop of the Tab key is for a word that has such a stop elsewhere. */
export function hint(name: string, isStop = true): HTMLElement {
  const words = meaning(name);
  return words === undefined ? h("span", {}, name) : h("abbr", { title: words, ...(isStop ? { tabindex: "0" } : {}) }, name);
}

export function heading<K extends "h1" | "h2" | "h3" | "h4">(tag: K, name: string): HTMLElementTagNameMap[K] {
  return h(tag, {}, hint(name));
}
