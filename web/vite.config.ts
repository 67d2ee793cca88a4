import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

/** The words of the page with their meanings: a section of docs/dictionary.md, so that both say the same. */
function words(): [string, string][] {
  const text = readFileSync(new URL("../docs/dictionary.md", import.meta.url), "utf8");
  const section = text.split(/^## /m).find((part) => part.startsWith("The console\n")) ?? "";
  const rows = section.split("\n").filter((line) => line.startsWith("| ")).slice(1);
  const all = rows.flatMap((row): [string, string][] => {
    const [word = "", meaning = ""] = row.split("|").slice(1).map((cell) => cell.trim().replaceAll("`", ""));
    return [[word, meaning]];
  });
  if (all.length === 0) throw new Error("docs/dictionary.md has no section `The console`");
  const twice = all.find(([word], at) => all.findIndex(([other]) => other === word) !== at);
  if (twice !== undefined) throw new Error(`docs/dictionary.md has \`${twice[0]}\` twice in the section \`The console\``);
  return all;
}

const MODULE = "virtual:dictionary";
const dictionary: Plugin = {
  name: "dictionary",
  resolveId: (id) => (id === MODULE ? `\0${MODULE}` : null),
  load: (id) => (id === `\0${MODULE}` ? `export default ${JSON.stringify(words())};` : null),
};

// What is built lies in the repository and is part of the program: the same names and octets wherever it is built.
export default defineConfig({
  base: "./",
  plugins: [dictionary],
  build: {
    outDir: "../crates/wayleave/console",
    emptyOutDir: true,
    target: "es2022",
    chunkSizeWarningLimit: 800,
    modulePreload: false,
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "console.js",
        chunkFileNames: "[name].js",
        assetFileNames: "console[extname]",
        inlineDynamicImports: true,
      },
    },
  },
});
