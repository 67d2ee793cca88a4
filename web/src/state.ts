// What is known now, and who wants to hear of a change.

import { listen, type RoleEvent, type Source } from "./api";

/** Events that the page keeps of all roles: however long it is open, it does not grow. */
const MAX_EVENTS = 1000;

class State {
  sources: Source[] = [];
  events: RoleEvent[] = [];
  isConnected = false;
  isLab = false;
  /** Whether anything was told yet. */
  isKnown = false;
  readonly #watchers = new Set<() => void>();
  #isDue = false;

  /** Calls back after each change, at most once a frame. The result ends it. */
  watch(changed: () => void): () => void {
    this.#watchers.add(changed);
    return () => this.#watchers.delete(changed);
  }

  source(name: string): Source | undefined {
    return this.sources.find((source) => source.name === name);
  }

  /** The sources of these roles, those that answer first. */
  ofRoles(roles: readonly string[]): Source[] {
    const fit = this.sources.filter((source) => roles.includes(source.overview?.role ?? ""));
    return fit.sort((a, b) => Number(a.absent !== null) - Number(b.absent !== null));
  }

  begin(): void {
    listen({
      connected: (isUp) => {
        this.isConnected = isUp;
        this.#changed();
      },
      sources: (all, isLab) => {
        [this.sources, this.isLab, this.isKnown] = [all, isLab, true];
        this.#changed();
      },
      source: (one) => {
        const at = this.sources.findIndex((source) => source.name === one.name);
        if (at >= 0) this.sources[at] = one;
        this.#changed();
      },
      events: (all) => {
        this.events = all.slice(-MAX_EVENTS);
        this.#changed();
      },
      news: (some) => {
        this.events.push(...some);
        this.events.splice(0, this.events.length - MAX_EVENTS);
        this.#changed();
      },
    });
  }

  #changed(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    // A page in the background is drawn no more, and must be right when somebody looks again.
    setTimeout(() => {
      this.#isDue = false;
      for (const changed of this.#watchers) {
        // What one part of the page cannot show must not stop the others.
        try {
          changed();
        } catch (error) {
          console.error(error);
        }
      }
    }, 16);
  }
}

export const state = new State();
