// What the roles report, as it happens.

import type { RoleEvent } from "../api";
import { h, text } from "../dom";
import type { Screen } from "../main";
import { sourceLink } from "../parts";
import { keep } from "../route";
import { state } from "../state";
import { Table } from "../table";
import { heading } from "../terms";

/** The fields of an event in words. */
function fields(event: RoleEvent): string {
  const { event: _, ...rest } = event.what;
  const words = Object.entries(rest).filter(([, value]) => value !== null);
  return words.map(([name, value]) => `${name.replaceAll("_", " ")}: ${text(value)}`).join(", ");
}

/** Long keys and hashes by their first digits. */
const short = (words: string): string => words.replace(/\b([0-9a-f]{8})[0-9a-f]{24,}\b/g, "$1...");

export function eventLine(event: RoleEvent): HTMLElement {
  const kind = text(event.what.event);
  return h("li", {}, h("time", { datetime: event.time }, event.time.slice(11, 19)), " ", sourceLink(event.source), " ", h("b", {}, kind), " ", short(fields(event)));
}

export const events: Screen = (into, parameters) => {
  const table = new Table<RoleEvent>({
    name: "Events",
    filter: parameters.get("filter") ?? "",
    filtered: (filter) => keep({ filter }),
    columns: [
      { title: "time", value: (event) => event.time },
      { title: "role", value: (event) => event.source, look: (event) => sourceLink(event.source) },
      { title: "event", value: (event) => event.what.event },
      { title: "what", value: fields },
    ],
  });
  into.append(heading("h1", "Events"), h("p", { class: "none" }, "The last thousand of all roles, newest first, as they happen."), table.element);
  const draw = (): void => {
    table.element.hidden = !state.isKnown;
    table.rows = [...state.events].reverse();
  };
  draw();
  return state.watch(draw);
};
