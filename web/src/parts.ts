// What several screens show.

import type { Source } from "./api";
import { h, text } from "./dom";
import { address } from "./route";
import { hint } from "./terms";

/** How a role stands, in a word and a colour. */
export function badge(source: Source): HTMLElement {
  if (source.absent !== null) return h("span", { class: "badge bad" }, "no answer");
  if (source.overview === null) return h("span", { class: "badge" }, "not asked yet");
  return source.overview.ready ? h("span", { class: "badge well" }, "ready") : h("span", { class: "badge bad" }, "not ready");
}

/** A choice of a source; `chosen` is told of another one. */
export function picker(sources: readonly Source[], current: string, chosen: (name: string) => void): HTMLElement {
  const select = h("select", { id: "source" });
  for (const source of sources) {
    const title = source.overview?.title ?? "";
    select.append(h("option", { value: source.name, selected: source.name === current }, title === "" ? source.name : `${source.name}: ${title}`));
  }
  select.addEventListener("change", () => chosen(select.value));
  return h("label", { for: "source" }, "Seen by ", select);
}

export type Bead = { name: string; state: "proved" | "broken" | "plain" | "end"; words?: string };

/** A path, hop by hop. Its words are for who cannot see colours. */
export function beads(path: readonly Bead[], label: string): HTMLElement {
  const bead = ({ name, state, words }: Bead): HTMLElement =>
    h("li", { class: `bead ${state}`, ...(words === undefined ? {} : { title: words }) }, name, h("span", { class: "unseen" }, words === undefined ? "" : `: ${words}`));
  return h("ol", { class: "beads", "aria-label": label }, ...path.map(bead));
}

export function problem(words: string): HTMLElement {
  return h("p", { class: "bad", role: "alert" }, words);
}

export function sourceLink(name: string): HTMLElement {
  return h("a", { href: address("source", { name }) }, name);
}

/** Names and values. */
export function facts(of: Record<string, unknown>): HTMLElement {
  const rows = Object.entries(of).flatMap(([name, value]) => [h("dt", {}, hint(name.replaceAll("_", " "))), h("dd", {}, text(value))]);
  return h("dl", {}, ...rows);
}

/** The source that an address names, or the first; `null` until that is known, and words where it cannot be. */
export function chosen(sources: readonly Source[], wanted: string | null, all: readonly Source[]): Source | string | null {
  if (wanted === null) return sources[0] ?? null;
  const of = sources.find((source) => source.name === wanted);
  if (of !== undefined) return of;
  const known = all.find((source) => source.name === wanted);
  if (known === undefined) return `No source is named ${wanted}.`;
  return known.overview === null && known.absent === null ? null : `${wanted} has no such page${known.absent === null ? "" : ` now: ${known.absent}`}.`;
}

/** Where no source can show a screen. */
export function none(what: string, roles: string): HTMLElement {
  return h("p", { class: "none" }, `${what}: no ${roles} among the sources of this console answers.`);
}
