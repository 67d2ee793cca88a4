// All that one role says, page by page.

import { NoAnswer, page, type Fields, type Json, type Row } from "../api";
import { command, h, replace } from "../dom";
import type { Screen } from "../main";
import { badge, facts, problem } from "../parts";
import { state } from "../state";
import { Table, columnsOf } from "../table";
import { heading } from "../terms";

/** The pages of each role that need no parameter; all have `status`. */
const PAGES: Record<string, string[]> = {
  rs: ["members", "peers", "keys"],
  member: ["peers", "exports", "profile", "keys"],
  attest: ["peers", "routes", "keys"],
  router: ["peers", "links", "neighbours", "accounts", "keys"],
  realm: ["members"],
  path: ["members"],
  consent: ["members"],
  gateway: ["peers", "paths", "links", "neighbours", "names", "choices"],
  stamper: ["stamping"],
  key: ["usage"],
};

/** The rows of a page, if it is a list. */
function rowsOf(value: Fields): [string, Record<string, unknown>[]] | null {
  const lists = Object.entries(value).filter((entry): entry is [string, Json[]] => Array.isArray(entry[1]));
  const [first, ...others] = lists;
  if (first === undefined || others.length > 0) return null;
  const [name, rows] = first;
  return rows.every((row) => typeof row === "object" && row !== null && !Array.isArray(row)) ? [name, rows as Record<string, unknown>[]] : null;
}

export const source: Screen = (into, parameters) => {
  const name = parameters.get("name") ?? "";
  const head = h("section");
  const pages = h("section");
  const place = h("div");
  const tail = h("div");
  into.append(head, place, tail, pages);
  let [asked, isOver] = ["", false];

  const show = async (what: string, place: HTMLElement): Promise<void> => {
    try {
      const value = await page(name, what);
      if (isOver) return;
      const { version: _, ...rest } = value;
      const rows = rowsOf(rest);
      if (rows === null) {
        replace(place, facts(rest));
        return;
      }
      const table = new Table<Record<string, unknown>>({ name: `${what} of ${name}`, columns: columnsOf(rows[1]), most: 20 });
      replace(place, table.element);
      table.rows = rows[1];
    } catch (error) {
      const words = error instanceof NoAnswer ? error.message : String(error);
      if (!isOver) replace(place, /does not show/.test(words) ? h("p", { class: "none" }, "This role has no such page.") : problem(words));
    }
  };

  // Made once for these columns, so that a filter and the focus in it stay.
  let peers: { columns: string; table: Table<Row> } | null = null;
  const table = (columns: string[]): Table<Row> => {
    const of = JSON.stringify(columns);
    if (peers?.columns !== of) {
      const table = new Table<Row>({
        name: `Peers of ${name}`,
        columns: columns.map((title, at) => ({ title, value: (row) => row.cells[at] })),
        isBad: (row) => !row.well,
      });
      peers = { columns: of, table };
      replace(place, columns.length > 0 && table.element);
    }
    return peers.table;
  };
  let [drawnHead, drawnTail] = ["", ""];

  const draw = (): void => {
    const of = state.source(name);
    if (of === undefined) {
      replace(head, h("h1", {}, name), h("p", { class: "none" }, state.isKnown ? "No source has this name." : "Loading"));
      return;
    }
    const { overview } = of;
    const problems = of.absent === null ? (overview?.problems ?? []) : [of.absent];
    const now = JSON.stringify([overview?.title, overview?.ready, problems]);
    if (now !== drawnHead) {
      drawnHead = now;
      replace(
        head,
        h("h1", {}, name, " ", badge(of)),
        h("p", {}, overview?.title ?? ""),
        problems.length > 0 && h("ul", { class: "problems" }, ...problems.map((words) => h("li", {}, words))),
      );
    }
    table(overview?.columns ?? []).rows = overview?.rows ?? [];
    const counts = JSON.stringify(overview?.counts);
    if (counts !== drawnTail) {
      drawnTail = counts;
      replace(tail, h("ul", { class: "counts" }, ...(overview?.counts ?? []).map((count) => h("li", {}, count))), command(`wayleave show status --all --url ${of.at}`));
    }
    const role = overview?.role ?? "";
    if (role !== "" && asked !== role) {
      asked = role;
      const sections = ["status", ...(Object.hasOwn(PAGES, role) ? PAGES[role]! : [])].map((what) => {
        const shown = h("div", {}, h("p", { class: "none" }, "Loading"));
        const details = h("details", {}, h("summary", {}, what), shown);
        details.addEventListener("toggle", () => {
          if (details.open) void show(what, shown);
        });
        return details;
      });
      replace(pages, heading("h2", "Pages"), ...sections);
    }
  };
  draw();
  const unwatch = state.watch(draw);
  return () => {
    isOver = true;
    unwatch();
  };
};
