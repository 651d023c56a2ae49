import sys, notebook, time
for n in sys.argv[1:]:
    t=time.time(); 
    try: print(n, repr(getattr(notebook,n)())[-3000:])
    finally: print(round(time.time()-t,1),'s')
