// Elements are made here alone, and text is only ever text: names come from strangers.

export type Child = Node | string | number | null | undefined | false;

type Attributes = Record<string, string | boolean | ((event: Event) => void)>;

/** An element with its attributes, listeners (functions) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, value);
  }
  put(element, ...children);
  return element;
}

/** Adds children to an element. */
export function put(element: Element, ...children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Puts children in the place of all that an element has. */
export function replace(element: Element, ...children: Child[]): void {
  element.replaceChildren();
  put(element, ...children);
}

/** The same, only if it shows anything else than before: a selection and the focus stay. */
export function redraw(element: Element, ...children: Child[]): void {
  const fresh = document.createElement(element.tagName);
  put(fresh, ...children);
  if (fresh.innerHTML !== element.innerHTML) element.replaceChildren(...fresh.childNodes);
}

/** A value as text of a cell: what is null is a dash, and what has parts is written out. */
export function text(value: unknown): string {
  if (value === null || value === undefined || value === "") return "-";
  if (typeof value === "string") return value;
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  if (Array.isArray(value)) return value.length === 0 ? "-" : value.map(text).join(", ");
  const parts = Object.entries(value as Record<string, unknown>).filter(([, part]) => part !== null);
  return parts.length === 0 ? "-" : parts.map(([name, part]) => `${name} ${text(part)}`).join(", ");
}

/** A moment, as people write it. */
export function moment(seconds: number): string {
  return new Date(seconds * 1000).toISOString().replace(/\.\d+Z$/, "Z");
}

/** A text to copy, and the button that does it. */
export function command(line: string): HTMLElement {
  const said = h("output", { "aria-live": "polite" });
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(line);
      said.textContent = "copied";
    } catch {
      said.textContent = "select and copy it";
    }
  };
  return h("p", { class: "command" }, h("code", {}, line), h("button", { type: "button", click: () => void copy() }, "Copy"), said);
}
