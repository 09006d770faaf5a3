// A headless Chromium, driven by what setup.sh fetched.
import { createRequire } from "node:module";
import { dirname, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const dir = process.env.BROWSER_DIR ?? resolve(here, "../../target/browser");
const { chromium } = createRequire(resolve(dir, "node_modules/"))("playwright-core");

// As root, where CI runs, Chromium can't make its sandbox; it is shown nothing but files of this machine.
export const launch = () =>
    chromium.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        args: ["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"],
    });
