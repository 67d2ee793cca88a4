import { chromium } from 'playwright-core'; import fs from 'node:fs';
const b=await chromium.launch({executablePath:'/usr/bin/chromium',args:['--no-sandbox']});
const p=await b.newPage({viewport:{width:1280,height:900},colorScheme:process.argv[3]||'light'});
p.on('console',m=>console.log('console',m.type(),m.text().slice(0,300))); p.on('pageerror',e=>console.log('pageerror',e.message));
const shots={overview:'#/overview',why:'#/why?source=alpha&what=198.51.100.0/24',whyown:'#/why?source=alpha&what=203.0.113.0/26',whyleft:'#/why?source=left&what=198.51.100.0/25',whya:'#/why?source=a&what=clean.b.demo',routes:'#/routes?source=alpha',map:'#/map?path=a+w1+w2+w3+b',overlay:'#/overlay',events:'#/events',source:'#/source?name=alpha',capabilities:'#/capabilities'};
const want=process.argv[2]?process.argv[2].split(','):Object.keys(shots);
for(const n of want){await p.goto('http://127.0.0.1:18470/'+shots[n]);await p.reload();await p.waitForTimeout(2500);
 if(n==='source') for(const d of await p.$$('details')) await d.click().catch(()=>{}); if(n==='source')await p.waitForTimeout(1500);
 await p.screenshot({path:`/tmp/m/shot-${n}.png`,fullPage:false});
 const axe=fs.readFileSync('node_modules/axe-core/axe.min.js','utf8'); await p.evaluate(axe); const r=await p.evaluate(()=>window.axe.run()); for(const v of r.violations)console.log(n,'AXE',v.id,v.impact,v.nodes.length,v.nodes[0].html.slice(0,150));}
await b.close();
