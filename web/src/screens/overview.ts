// What is wrong, who is there, and what has just happened.

import { badge, sourceLink } from "../parts";
import { h, moment, redraw } from "../dom";
import type { Screen } from "../main";
import { address } from "../route";
import { state } from "../state";
import { heading, hint } from "../terms";
import { eventLine } from "./events";

const ROWS = 6;
const EVENTS = 12;

export const overview: Screen = (into) => {
  const problems = h("section", { "aria-label": "Problems" });
  const roles = h("section", { class: "cards", "aria-label": "Roles" });
  const last = h("section", { class: "feed", "aria-label": "Last events" });
  const columns = h("div", { class: "columns" }, roles, last);
  into.append(heading("h1", "Overview"), problems, columns);

  const draw = (): void => {
    // Problems come first: what stands below them is shown with them, and does not move.
    columns.hidden = !state.isKnown;
    const wrong = state.sources.flatMap((source) => {
      const own = source.absent === null ? (source.overview?.problems ?? []) : [source.absent];
      return own.map((words) => h("li", {}, sourceLink(source.name), ": ", words));
    });
    const quiet = state.isKnown ? (state.sources.length === 0 ? "This console has no sources." : "No role has a problem.") : "Loading";
    redraw(
      problems,
      h("h2", {}, hint("Problems"), wrong.length > 0 && ` (${wrong.length})`),
      wrong.length === 0 ? h("p", { class: state.isKnown ? "well" : "none" }, quiet) : h("ul", { class: "problems" }, ...wrong),
    );
    // One stop of the Tab key for each word, not one for each card that has it.
    const stops = new Set<string>();
    const column = (name: string): HTMLElement => {
      const isStop = !stops.has(name);
      stops.add(name);
      return h("th", { scope: "col" }, hint(name, isStop));
    };
    const cards = state.sources.map((source) => {
      const { overview } = source;
      const rows = overview?.rows ?? [];
      const shown = rows.slice(0, ROWS).map((row) => h("tr", { class: row.well ? "" : "bad" }, ...row.cells.map((cell) => h("td", {}, cell))));
      const heads = (overview?.columns ?? []).map(column);
      return h(
        "article",
        { class: "card" },
        h("h3", {}, sourceLink(source.name), " ", badge(source)),
        h("p", { class: "title" }, overview?.title ?? source.at),
        rows.length > 0 && h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Peers of ${source.name}` }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), h("tbody", {}, ...shown))),
        rows.length > ROWS && h("p", {}, h("a", { href: address("source", { name: source.name }) }, `${rows.length - ROWS} more`)),
        h("ul", { class: "counts" }, ...(overview?.counts ?? []).map((count) => h("li", {}, count))),
        source.absent !== null && source.answered !== null && h("p", { class: "none" }, `As of ${moment(source.answered)}.`),
      );
    });
    redraw(roles, heading("h2", "Roles"), ...cards);
    const newest = state.events.slice(-EVENTS).reverse();
    redraw(
      last,
      heading("h2", "Last events"),
      newest.length === 0 ? h("p", { class: "none" }, "none yet") : h("ol", {}, ...newest.map(eventLine)),
      h("p", {}, h("a", { href: address("events") }, "All events")),
    );
  };
  draw();
  return state.watch(draw);
};
