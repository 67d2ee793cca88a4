import { defineConfig } from "vite";

// What is built lies in the repository and is part of the program: the same names and octets wherever it is built.
export default defineConfig({
  base: "./",
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
