// What vite.config.ts makes of docs/dictionary.md.

declare module "virtual:dictionary" {
  /** Words in lower case with their meanings. */
  const words: [word: string, meaning: string][];
  export default words;
}
