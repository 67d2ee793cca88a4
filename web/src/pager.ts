// Pages of a list that a role reads out a part at a time: where one is, and how one goes on and back.

import { h } from "./dom";

/** Where a page begins: behind a row of the role's list, as it names it, and as which row one came to it. */
export interface Place {
  after: string;
  row: number;
}

/** Pages that one can go back to, one by one: those of a quarter of a million rows. */
const MOST_BEFORE = 2_500;

export class Pager {
  readonly element: HTMLElement;
  readonly #said = h("output", { "aria-live": "polite", class: "said" });
  readonly #buttons: Record<"first" | "previous" | "next", HTMLButtonElement>;
  #before: Place[] = [];
  #at: Place = { after: "", row: 1 };
  #next: Place | null = null;

  /** `go` shows another page and says whether it could. */
  constructor(go: (to: Place) => Promise<boolean>) {
    const turn = (to: Place | undefined | null, before: Place[]): void => {
      if (to === undefined || to === null) return;
      void go(to).then((isShown) => {
        if (!isShown) return;
        this.#before = before.slice(-MOST_BEFORE);
        this.#draw();
      });
    };
    const button = (title: string, click: () => void): HTMLButtonElement => h("button", { type: "button", click }, title);
    this.#buttons = {
      first: button("First page", () => turn(this.#at.after === "" ? null : { after: "", row: 1 }, [])),
      previous: button("Previous page", () => turn(this.#before.at(-1), this.#before.slice(0, -1))),
      next: button("Next page", () => turn(this.#next, [...this.#before, this.#at])),
    };
    this.element = h("div", { class: "pages", role: "group", "aria-label": "Pages" }, ...Object.values(this.#buttons), this.#said);
  }

  /** What is shown: the page at `at` with so many rows, what comes behind it, and that in words. */
  shown(at: Place, rows: number, next: string | null, words: string): void {
    this.#at = at;
    this.#next = next === null ? null : { after: next, row: at.row + rows };
    this.#said.textContent = words;
    this.#draw();
  }

  #draw(): void {
    // A button that cannot be used keeps the focus: who goes on by keyboard is not thrown back to the page's beginning.
    const is = (button: HTMLButtonElement, usable: boolean): void => button.setAttribute("aria-disabled", String(!usable));
    is(this.#buttons.first, this.#at.after !== "");
    is(this.#buttons.previous, this.#before.length > 0);
    is(this.#buttons.next, this.#next !== null);
  }
}
