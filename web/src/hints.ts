// Hints by keyboard: browsers show a title to the pointer alone. One box shows that of the element that has the focus.

import { h } from "./dom";

/** Pixels between the box and what it is about, and between it and the window's edge. */
const GAP = 6;

const box = h("div", { id: "hint", role: "tooltip", hidden: true });
let about: HTMLElement | null = null;

function hide(): void {
  about = null;
  box.hidden = true;
}

/** Over the page, so that nothing moves. */
function place(): void {
  if (about === null) return;
  if (!about.isConnected) {
    hide();
    return;
  }
  const { left, top, bottom } = about.getBoundingClientRect();
  const isBelow = bottom + GAP + box.offsetHeight <= window.innerHeight;
  const across = Math.max(GAP, Math.min(left, window.innerWidth - box.offsetWidth - GAP));
  const down = isBelow ? bottom + GAP : Math.max(GAP, top - GAP - box.offsetHeight);
  // Not by attribute, which the page's policy refuses.
  box.style.left = `${across}px`;
  box.style.top = `${down}px`;
}

function show(of: EventTarget | null): void {
  hide();
  // A finger has no pointer that could rest on a word, so that a word shows its hint however it came to the focus.
  if (!(of instanceof HTMLElement) || of.title === "" || !(of.tagName === "ABBR" || of.matches(":focus-visible"))) return;
  about = of;
  box.textContent = of.title;
  box.hidden = false;
  place();
}

/** Begins to show them, in a box of `parent`. The result is to be called when the page may have changed. */
export function showHints(parent: Element): () => void {
  parent.append(box);
  document.addEventListener("focusin", (event) => show(event.target));
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  window.addEventListener("scroll", place, { capture: true, passive: true });
  window.addEventListener("resize", place);
  return place;
}
