// A table that can be filtered, sorted, copied and saved, and whose address says what it shows.

import { h, put, replace, text } from "./dom";
import { meaning } from "./terms";

export interface Column<T> {
  title: string;
  /** What a cell shows, copies and sorts by. */
  value: (row: T) => unknown;
  /** What a cell looks like, where that is more than its text. */
  look?: (row: T) => Node;
}

interface Options<T> {
  /** Names the table in files and for who cannot see it. */
  name: string;
  columns: Column<T>[];
  isBad?: (row: T) => boolean;
  /** Rows at once; more on request. */
  most?: number;
  filter?: string;
  filtered?: (filter: string) => void;
}

const PAGE = 100;

export class Table<T> {
  readonly element: HTMLElement;
  readonly #options: Options<T>;
  readonly #body = h("tbody");
  readonly #said = h("output", { "aria-live": "polite", class: "said" });
  readonly #input: HTMLInputElement;
  #rows: readonly T[] = [];
  /** What the body shows: it is drawn anew only where that differs, so that a selection and the focus stay. */
  #drawn = "";
  #shown = PAGE;
  #sortedBy: number | null = null;
  #isDescending = false;

  constructor(options: Options<T>) {
    this.#options = options;
    this.#shown = options.most ?? PAGE;
    this.#input = h("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${options.name}` });
    this.#input.value = options.filter ?? "";
    this.#input.addEventListener("input", () => {
      options.filtered?.(this.#input.value);
      this.#draw();
    });
    const heads = options.columns.map((column, at) => {
      const words = meaning(column.title);
      const button = h("button", { type: "button", click: () => this.#sortBy(at), ...(words === undefined ? {} : { title: words }) }, column.title);
      return h("th", { scope: "col" }, button);
    });
    const action = (title: string, act: () => void): HTMLElement => h("button", { type: "button", click: act }, title);
    this.element = h(
      "section",
      { class: "table" },
      h(
        "div",
        { class: "tools" },
        this.#input,
        action("Copy", () => void this.#copy()),
        action("CSV", () => this.#save("csv", "text/csv", this.#csv())),
        action("JSON", () => this.#save("json", "application/json", this.#json())),
        this.#said,
      ),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": options.name }, h("table", {}, h("thead", {}, h("tr", {}, ...heads)), this.#body)),
    );
  }

  set rows(rows: readonly T[]) {
    this.#rows = rows;
    this.#draw();
  }

  #matching(): T[] {
    const wanted = this.#input.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const { columns } = this.#options;
    const line = (row: T): string => columns.map((column) => text(column.value(row))).join(" ").toLowerCase();
    const rows = wanted.length === 0 ? [...this.#rows] : this.#rows.filter((row) => wanted.every((word) => line(row).includes(word)));
    const by = this.#sortedBy === null ? undefined : columns[this.#sortedBy];
    if (by !== undefined) {
      const sign = this.#isDescending ? -1 : 1;
      rows.sort((a, b) => sign * compare(by.value(a), by.value(b)));
    }
    return rows;
  }

  #sortBy(at: number): void {
    this.#isDescending = this.#sortedBy === at && !this.#isDescending;
    this.#sortedBy = at;
    this.element.querySelectorAll("th").forEach((head, index) => {
      head.setAttribute("aria-sort", index !== at ? "none" : this.#isDescending ? "descending" : "ascending");
    });
    this.#draw();
  }

  #draw(): void {
    const rows = this.#matching();
    const { columns, isBad } = this.#options;
    const drawn = JSON.stringify([rows.length, ...rows.slice(0, this.#shown).map((row) => [isBad?.(row) === true, ...columns.map((column) => text(column.value(row)))])]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    replace(this.#body);
    for (const row of rows.slice(0, this.#shown)) {
      const cells = columns.map((column) => h("td", {}, column.look?.(row) ?? text(column.value(row))));
      put(this.#body, h("tr", { class: isBad?.(row) === true ? "bad" : "" }, ...cells));
    }
    if (rows.length === 0) {
      const words = this.#rows.length === 0 ? "none" : "none that match";
      put(this.#body, h("tr", {}, h("td", { colspan: String(columns.length), class: "none" }, words)));
    }
    const rest = rows.length - this.#shown;
    if (rest > 0) {
      const more = (): void => {
        this.#shown += PAGE;
        this.#draw();
      };
      const button = h("button", { type: "button", click: more }, `Show ${Math.min(rest, PAGE)} more of ${rest}`);
      put(this.#body, h("tr", {}, h("td", { colspan: String(columns.length) }, button)));
    }
  }

  #lines(): string[][] {
    const { columns } = this.#options;
    return [columns.map((column) => column.title), ...this.#matching().map((row) => columns.map((column) => text(column.value(row))))];
  }

  #csv(): string {
    return this.#lines().map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";
  }

  #json(): string {
    return JSON.stringify(this.#matching(), null, 2) + "\n";
  }

  async #copy(): Promise<void> {
    const lines = this.#lines().map((line) => line.map((cell) => harmless(cell).replace(/[\t\n\r]/g, " ")).join("\t"));
    try {
      await navigator.clipboard.writeText(lines.join("\n"));
      this.#said.textContent = `${lines.length - 1} rows copied`;
    } catch {
      this.#said.textContent = "this browser does not let a page copy; save it as CSV";
    }
  }

  #save(ending: string, kind: string, content: string): void {
    const place = URL.createObjectURL(new Blob([content], { type: kind }));
    h("a", { href: place, download: `${this.#options.name.replace(/[^a-z0-9]+/gi, "-")}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(place), 1000);
    this.#said.textContent = `saved as ${ending.toUpperCase()}`;
  }
}

/** What a spreadsheet would take for a formula stays text. */
const harmless = (cell: string): string => (/^[=+\-@\t\r]/.test(cell) && cell !== "-" ? `'${cell}` : cell);

/** A cell of CSV (RFC 4180). */
export function quoted(cell: string): string {
  const safe = harmless(cell);
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function compare(a: unknown, b: unknown): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return text(a).localeCompare(text(b), "en", { numeric: true });
}

/** Columns for rows of whatever fields, in the order in which these occur. */
export function columnsOf(rows: readonly Record<string, unknown>[]): Column<Record<string, unknown>>[] {
  const names = new Set(rows.slice(0, 200).flatMap((row) => Object.keys(row)));
  return [...names].map((name) => ({ title: name.replaceAll("_", " "), value: (row) => row[name] }));
}
